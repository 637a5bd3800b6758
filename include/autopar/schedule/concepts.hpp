#pragma once

#include <concepts>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/schedule/action.hpp>
#include <autopar/schedule/pipeline.hpp>

namespace autopar {

/// Marks a type as a schedule, so that planners accept policies in any order.
struct schedule_policy_tag {};

/// One compute action of a stage: the forward or a backward of a micro-batch. A backward is one kBackward, or a
/// kBackwardInput and a later kBackwardWeight.
struct ComputeAction {
  ActionKind kind = ActionKind::kForward;
  int microbatch = 0;
  StageId stage{};  ///< set in the order of a rank, not in the order of a stage
  friend bool operator==(ComputeAction, ComputeAction) = default;
};

/// The order in which a stage runs the forwards and backwards of a step. Stages that share a rank run compute actions
/// as soon as they can start: the earliest micro-batch first, and among equal ones the earliest stage.
///
/// Laws:
/// - `order(s, stages, m)` is pure. It has one forward for every micro-batch 0 … m-1 and, later, one backward (see
///   ComputeAction).
/// - The orders of all stages together have no cycle. For one micro-batch, a forward needs the forwards of earlier
///   stages, and a backward needs the backwards of later stages.
/// - `peak_activations(s, stages, m)` is the largest number of micro-batches that, at any point of the order, have
///   begun their forward and not completed their backward.
template <class P>
concept StageOrderPolicy = requires(const P& policy, StageId stage, int stages, int microbatches) {
  { policy.order(stage, stages, microbatches) } -> std::same_as<std::vector<ComputeAction>>;
  { policy.peak_activations(stage, stages, microbatches) } -> std::convertible_to<int>;
};

/// The order in which each rank runs the compute actions of all its stages.
///
/// Laws:
/// - `rank_orders(pipeline, m)` [rank] is pure. For each stage of a rank, and no other stage, it has one forward for
///   every micro-batch 0 … m-1 and, later, one backward (see ComputeAction).
/// - The orders of all ranks together have no cycle, as for a StageOrderPolicy.
/// - It throws InvalidArgument for a pipeline that the policy has no order for.
template <class P>
concept RankOrderPolicy = requires(const P& policy, const Pipeline& pipeline, int microbatches) {
  { policy.rank_orders(pipeline, microbatches) } -> std::same_as<std::vector<std::vector<ComputeAction>>>;
};

/// Orders of forwards and backwards, of stages or of ranks. `testing/schedule_laws.hpp` checks the laws of both.
template <class P>
concept SchedulePolicy = std::same_as<typename P::policy_category, schedule_policy_tag> &&
    (StageOrderPolicy<P> || RankOrderPolicy<P>);

}  // namespace autopar
