#pragma once

#include <functional>
#include <optional>
#include <string>

#include <autopar/core/units.hpp>
#include <autopar/cost/model_profile.hpp>
#include <autopar/cost/profiled.hpp>
#include <autopar/plan/plan.hpp>

namespace autopar {

/// Another program that trains the request's model, such as one whose class head makes its logits in chunks. A planner
/// searches the variants of a request after its own program, in their order, and answers with the fastest plan.
///
///   request.variants.push_back({.profile = chunked, .costs = measured, .is_worth = [](const Plan* best) { … }});
struct ProgramVariant {
  ModelProfile profile;
  ProfiledCost costs;
  /// Whether a search may pay, given the best plan so far (null: none fits). Empty: it always may.
  std::function<bool(const Plan* best)> is_worth{};
  /// Note of a plan of this variant. @param other  step of the best plan of the earlier programs, if one fits
  std::function<std::string(std::optional<Seconds> other)> chosen_note{};
  /// Note of another program's better plan. @param own  step of this variant's plan
  std::function<std::string(Seconds own)> passed_note{};
};

}  // namespace autopar
