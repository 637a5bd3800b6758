#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <autopar/graph/algorithms/topological_order.hpp>
#include <autopar/plan/concepts.hpp>

/// A user's policy: every second node of a topological order with the one before it, which closes no circle.
struct PairsCoarsening {
  using policy_category = autopar::coarsening_policy_tag;

  [[nodiscard]] autopar::Partition coarsen(const autopar::Workload& work, std::int64_t, int least_blocks) const {
    const auto order = autopar::topological_order(work.graph);
    const auto least = std::min(order.size(), static_cast<std::size_t>(least_blocks));
    const std::size_t pairs = std::min(order.size() / 2, order.size() - least);
    std::vector<autopar::BlockId> block_of(order.size());
    for (std::size_t i = 0; i < order.size(); ++i)
      block_of[order[i].index()] = autopar::BlockId::of(i < 2 * pairs ? i / 2 : i - pairs);
    return autopar::Partition(std::move(block_of));
  }
};
static_assert(autopar::CoarseningPolicy<PairsCoarsening>);
