#pragma once

#include <concepts>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/schedule/action.hpp>
#include <autopar/schedule/pipeline.hpp>

namespace autopar {

/// Marks a type as a schedule, so that planners can take policies in any order.
struct schedule_policy_tag {};

/// One compute action of a stage: the forward or a backward of a micro-batch. A backward is one kBackward, or a
/// kBackwardInput and, later, a kBackwardWeight.
struct ComputeAction {
  ActionKind kind = ActionKind::kForward;
  int microbatch = 0;
  StageId stage{};  ///< in the order of a rank; left out in the order of a stage
  friend bool operator==(ComputeAction, ComputeAction) = default;
};

/// In which order a stage runs the forwards and backwards of a step. Stages that share a rank run their compute actions
/// as each can start; of those that can, the earliest micro-batch goes first, and of it the earliest stage.
///
/// Laws: `order(s, stages, m)` is pure and names every micro-batch 0 … m-1 once as forward and, later, once as backward
/// (see ComputeAction); the orders of all stages together have no cycle, given that the forward of a micro-batch needs
/// those of earlier stages and its backward those of later stages; `peak_activations(s, stages, m)` is the largest
/// number of micro-batches that are forward but not yet wholly backward at any point of that order.
template <class P>
concept StageOrderPolicy = requires(const P& policy, StageId stage, int stages, int microbatches) {
  { policy.order(stage, stages, microbatches) } -> std::same_as<std::vector<ComputeAction>>;
  { policy.peak_activations(stage, stages, microbatches) } -> std::convertible_to<int>;
};

/// In which order each rank runs the compute actions of all its stages.
///
/// Laws: `rank_orders(pipeline, m)` [rank] is pure and names for each stage of a rank every micro-batch 0 … m-1 once as
/// forward and, later, once as backward (see ComputeAction), and no other stage; the orders of all ranks together have
/// no cycle, likewise. A pipeline that the policy has no order for is refused by InvalidArgument.
template <class P>
concept RankOrderPolicy = requires(const P& policy, const Pipeline& pipeline, int microbatches) {
  { policy.rank_orders(pipeline, microbatches) } -> std::same_as<std::vector<std::vector<ComputeAction>>>;
};

/// Orders of forwards and backwards, for stages or for ranks. `testing/schedule_laws.hpp` checks the laws of both.
template <class P>
concept SchedulePolicy = std::same_as<typename P::policy_category, schedule_policy_tag> &&
    (StageOrderPolicy<P> || RankOrderPolicy<P>);

}  // namespace autopar
