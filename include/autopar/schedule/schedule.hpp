#pragma once

#include <concepts>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/schedule/given_orders.hpp>
#include <autopar/schedule/kind.hpp>
#include <autopar/schedule/program.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar {

/// Calls `use` with the policy of a kind and returns the result.
/// @param orders  for the synthesised schedule, whose policy is its orders
/// @throws InvalidArgument if there is no such kind
template <std::size_t Row = 0, class Use>
decltype(auto) with_policy(ScheduleKind kind, Use&& use, const GivenOrders& orders = {}) {
  const auto& row = std::get<Row>(detail::kScheduleTable);
  using Policy = typename std::remove_cvref_t<decltype(row)>::Policy;
  const auto call = [&]() -> decltype(auto) {
    if constexpr (std::same_as<Policy, GivenOrders>) {
      return std::forward<Use>(use)(orders);
    } else {
      return std::forward<Use>(use)(Policy{});
    }
  };
  if (row.traits.kind == kind) return call();
  if constexpr (Row + 1 < std::tuple_size_v<decltype(detail::kScheduleTable)>) {
    return with_policy<Row + 1>(kind, std::forward<Use>(use), orders);
  } else {
    throw InvalidArgument("schedule: no such kind");
  }
}

/// The program of every rank in one call under a schedule of this kind; see the other `make_program`.
/// @param orders  for the synthesised schedule: for as many micro-batches as the layout has, or more
/// @throws InvalidArgument also if the pipeline's stages do not have the schedule's layout
[[nodiscard]] inline Program make_program(const Pipeline& pipeline, const BatchLayout& layout, ScheduleKind kind,
                                          Phase phase = Phase::kStep, const GivenOrders& orders = {}) {
  return with_policy(
      kind, [&](const auto& policy) { return make_program(pipeline, layout, policy, phase); }, orders);
}

/// The order in which each rank runs the compute actions of its stages, [rank]. If the policy orders stages, a rank
/// with several stages has the order of its last one; only nominal times determine how they interleave.
template <SchedulePolicy Policy>
[[nodiscard]] std::vector<std::vector<ComputeAction>> rank_orders_of(const Policy& policy, const Pipeline& pipeline,
                                                                     int microbatches) {
  if constexpr (RankOrderPolicy<Policy>) {
    return policy.rank_orders(pipeline, microbatches);
  } else {
    std::vector<std::vector<ComputeAction>> orders(static_cast<std::size_t>(pipeline.ranks));
    const int stages = static_cast<int>(pipeline.stages.size());
    for (int s = 0; s < stages; ++s) {
      auto order = policy.order(StageId(s), stages, microbatches);
      for (ComputeAction& compute : order) compute.stage = StageId(s);
      for (const Rank rank : pipeline.stages[static_cast<std::size_t>(s)].ranks()) orders[rank.index()] = order;
    }
    return orders;
  }
}

}  // namespace autopar
