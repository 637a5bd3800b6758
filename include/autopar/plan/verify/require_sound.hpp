#pragma once

#include <string>

#include <autopar/core/error.hpp>
#include <autopar/plan/verify/shape.hpp>
#include <autopar/plan/verify/stated_plan.hpp>

namespace autopar {

/// Checks a plan from a file or a caller; whoever takes one must call this before using it. The plan must divide this
/// model. Each atom and its operators are in one stage, no value goes back to an earlier stage, and parameters have the
/// model's sizes. Its schedule must be able to run its ranks, segments and orders: the program of a step must pass
/// `validate`. Predicted times and memory are not checked; only `check_plan` relies on them.
/// @pre  plan.model == model.hash
/// @throws InvalidArgument naming the field of the plan and what is wrong in it
inline void require_sound(const ModelProfile& model, const Plan& plan) {
  const auto refuse = [](const std::string& what) { throw InvalidArgument("the plan: " + what + "; plan again"); };
  if (const auto fault = verify::fault_in_shape(model, plan); !fault.empty()) refuse(fault);
  const verify::StatedPlan stated(model, plan);
  try {
    for (const Phase phase : stated.phases()) (void)stated.program(phase);
  } catch (const InvalidArgument& error) {
    refuse("stages[].ranks, schedule, orders: " + std::string(error.what()));
  }
}

}  // namespace autopar
