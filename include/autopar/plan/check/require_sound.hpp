#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <autopar/core/cluster.hpp>
#include <autopar/core/error.hpp>
#include <autopar/cost/roofline.hpp>
#include <autopar/plan/check/shape.hpp>
#include <autopar/plan/model/pipeline_of.hpp>
#include <autopar/plan/model/staging.hpp>
#include <autopar/plan/model/tensor_shards.hpp>
#include <autopar/plan/model/workload.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/plan/report/make_plan.hpp>
#include <autopar/plan/request.hpp>
#include <autopar/schedule/schedule.hpp>
#include <autopar/schedule/validate.hpp>

namespace autopar {

namespace detail {

inline constexpr std::int64_t kMostComputesProven = 1 << 22;  // micro-batches x (ranks + stages)

/// @throws InvalidArgument unless the program of a step under the plan's schedule is sound: see `validate`
inline void prove_schedule(const ModelProfile& model, const Plan& plan) {
  const RooflineCost no_costs{Cluster{}};  // actions and orders do not depend on costs
  const Workload whole = make_workload(model, no_costs);
  const Staging staging = staging_of(plan, model.graph.node_count());
  const Workload work = staging.tensor.empty() ? whole : in_shards(whole, staging, plan.sequence_parallel);
  const Pipeline pipeline = make_pipeline(work, staging, meshes_of(plan), plan.world, plan.buckets).pipeline;
  Constraints constraints;
  constraints.world = plan.world;
  constraints.batch = plan.batch;
  const BatchLayout layout{constraints.local_batches(), plan.microbatches};
  const GivenOrders orders{plan.orders, plan.orders.empty() ? 0 : plan.microbatches};
  const auto prove = [&](Phase phase) {
    validate(pipeline, layout, phase, make_program(pipeline, layout, plan.schedule, phase, orders));
  };
  if (model.loss_mode) return prove(Phase::kStep);
  prove(Phase::kForward);
  prove(Phase::kBackward);
}

}  // namespace detail

/// Checks a plan from a file or a caller; whoever takes one must call this before using it. The plan must divide this
/// model. Each atom and its operators are in one stage, no value goes back to an earlier stage, and parameters have the
/// model's sizes. Its schedule must be able to run its ranks, segments and orders. The program of a step must pass the
/// same proof as for any plan. Predicted times and memory are not checked; only `check_plan` relies on them.
/// @pre  plan.model == model.hash
/// @throws InvalidArgument naming the field of the plan and what is wrong in it
inline void require_sound(const ModelProfile& model, const Plan& plan) {
  const auto refuse = [](const std::string& what) { throw InvalidArgument("the plan: " + what + "; plan again"); };
  if (const auto fault = detail::fault_in_shape(model, plan); !fault.empty()) refuse(fault);
  const auto size = static_cast<std::int64_t>(plan.world) + static_cast<std::int64_t>(plan.stages.size());
  if (size * plan.microbatches > detail::kMostComputesProven) {
    refuse("microbatches: " + std::to_string(plan.microbatches) + " on " + std::to_string(plan.world) +
           " ranks are more than can be run");
  }
  try {
    detail::prove_schedule(model, plan);
  } catch (const Error& error) {
    refuse("stages[].ranks, schedule, orders: " + std::string(error.what()));
  }
}

}  // namespace autopar
