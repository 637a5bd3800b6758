#pragma once

#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/schedule/chunks.hpp>
#include <autopar/schedule/given_orders.hpp>
#include <autopar/schedule/gpipe.hpp>
#include <autopar/schedule/interleaved.hpp>
#include <autopar/schedule/kind.hpp>
#include <autopar/schedule/one_f_one_b.hpp>
#include <autopar/schedule/program.hpp>
#include <autopar/schedule/zb_h1.hpp>
#include <autopar/schedule/zb_v.hpp>

namespace autopar {

/// Calls `use` with the policy of a kind and returns what it returns.
/// @param orders  of kSynthesised, which is nothing but its orders
template <class Use>
decltype(auto) with_policy(ScheduleKind kind, Use&& use, const GivenOrders& orders = {}) {
  switch (kind) {
    case ScheduleKind::kGPipe:
      return std::forward<Use>(use)(GPipe{});
    case ScheduleKind::kOneFOneB:
      return std::forward<Use>(use)(OneFOneB{});
    case ScheduleKind::kInterleaved:
      return std::forward<Use>(use)(Interleaved{});
    case ScheduleKind::kZbH1:
      return std::forward<Use>(use)(ZbH1{});
    case ScheduleKind::kZbV:
      return std::forward<Use>(use)(ZbV{});
    case ScheduleKind::kSynthesised:
      return std::forward<Use>(use)(orders);
  }
  throw InvalidArgument("schedule: no such kind");
}

/// What every rank does in one call under a schedule that is known by its kind; see the other `make_program`.
/// @param orders  of kSynthesised: for as many micro-batches as the layout has, or more
/// @throws InvalidArgument also if the pipeline's stages are not where the schedule wants them
[[nodiscard]] inline Program make_program(const Pipeline& pipeline, const BatchLayout& layout, ScheduleKind kind,
                                          Phase phase = Phase::kStep, const GivenOrders& orders = {}) {
  return with_policy(
      kind, [&](const auto& policy) { return make_program(pipeline, layout, policy, phase); }, orders);
}

/// The stages of a pipeline where a schedule wants them.
/// @param chunks  stages a position, as far as there is a choice: ZB-V has two, GPipe, 1F1B and ZB-H1 run any number
[[nodiscard]] inline std::vector<std::vector<Rank>> stages_for(ScheduleKind kind, const Positions& positions,
                                                               int chunks = 1) {
  return kind == ScheduleKind::kZbV ? v_shaped_stages(positions) : looped_stages(positions, chunks);
}

}  // namespace autopar
