#pragma once

#include <concepts>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/schedule/action.hpp>

namespace autopar {

/// Marks a type as a schedule, so that planners can take policies in any order.
struct schedule_policy_tag {};

/// One turn of a stage: the forward or the backward of a micro-batch.
struct Turn {
  ActionKind kind = ActionKind::kForward;  ///< kForward or kBackward
  int microbatch = 0;
  friend bool operator==(Turn, Turn) = default;
};

/// In which order a stage runs the forwards and backwards of a step.
///
/// Laws: `order(s, stages, m)` is pure and names every micro-batch 0 … m-1 once as kForward and, later, once as
/// kBackward; the orders of all stages together have no cycle, given that the forward of a micro-batch needs those of
/// earlier stages and its backward those of later stages; `peak_activations(s, stages, m)` is the largest number of
/// micro-batches that are forward but not yet backward at any point of that order.
template <class P>
concept SchedulePolicy = requires(const P& policy, StageId stage, int stages, int microbatches) {
  requires std::same_as<typename P::policy_category, schedule_policy_tag>;
  { policy.order(stage, stages, microbatches) } -> std::same_as<std::vector<Turn>>;
  { policy.peak_activations(stage, stages, microbatches) } -> std::convertible_to<int>;
};

}  // namespace autopar
