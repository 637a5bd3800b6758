#pragma once

#include <concepts>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/schedule/chunks.hpp>
#include <autopar/schedule/given_orders.hpp>
#include <autopar/schedule/kind.hpp>
#include <autopar/schedule/program.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar {

/// Calls `use` with the policy of a kind and returns what it returns.
/// @param orders  of the schedule that is nothing but its orders
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

/// What every rank does in one call under a schedule that is known by its kind; see the other `make_program`.
/// @param orders  of the schedule that is nothing but its orders: for as many micro-batches as the layout has, or more
/// @throws InvalidArgument also if the pipeline's stages are not where the schedule wants them
[[nodiscard]] inline Program make_program(const Pipeline& pipeline, const BatchLayout& layout, ScheduleKind kind,
                                          Phase phase = Phase::kStep, const GivenOrders& orders = {}) {
  return with_policy(
      kind, [&](const auto& policy) { return make_program(pipeline, layout, policy, phase); }, orders);
}

/// In which order each rank runs the compute actions of its stages, [rank]. Where a policy orders stages, nominal times
/// would say how those of one rank mix: here it has the order of the last.
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

/// The stages of a pipeline where a schedule wants them.
/// @param chunks  stages a position, as far as there is a choice: a V has two, schedules of one stage a position run
///                any number
[[nodiscard]] inline std::vector<Mesh> stages_for(ScheduleKind kind, const Positions& positions, int chunks = 1) {
  const bool v_shaped = traits_of(kind).layout == StageLayout::kVShaped;
  return v_shaped ? v_shaped_stages(positions) : looped_stages(positions, chunks);
}

}  // namespace autopar
