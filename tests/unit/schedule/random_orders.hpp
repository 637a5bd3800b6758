#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <autopar/schedule/concepts.hpp>
#include <autopar/schedule/pipeline.hpp>
#include <autopar/testing/dice.hpp>

namespace autopar::testing {

/// Orders drawn at random among those that can run, backwards whole or in two parts.
struct RandomOrders {
  using policy_category = schedule_policy_tag;
  std::uint64_t seed = 0;

  [[nodiscard]] std::vector<std::vector<ComputeAction>> rank_orders(const Pipeline& pipeline, int microbatches) const {
    Dice dice(seed);
    std::vector<std::vector<ComputeAction>> orders(static_cast<std::size_t>(pipeline.ranks));
    const int stages = static_cast<int>(pipeline.stages.size());
    const auto run = [&](int stage, ComputeAction compute) {
      compute.stage = StageId(stage);
      for (const Rank rank : pipeline.stages[compute.stage.index()].ranks()) orders[rank.index()].push_back(compute);
    };
    std::vector<int> at(static_cast<std::size_t>(microbatches), 0);  // stages forward, then stages backward
    std::vector<std::pair<int, int>> weights;                        // stage, micro-batch
    std::vector<int> open(at.size());
    for (int m = 0; m < microbatches; ++m) open[static_cast<std::size_t>(m)] = m;
    while (!open.empty() || !weights.empty()) {
      if (!weights.empty() && (open.empty() || dice.chance(30))) {
        const auto w = weights.begin() + dice.below(static_cast<int>(weights.size()));
        run(w->first, {ActionKind::kBackwardWeight, w->second});
        weights.erase(w);
        continue;
      }
      const auto next = open.begin() + dice.below(static_cast<int>(open.size()));
      const int m = *next, step = at[static_cast<std::size_t>(m)]++;
      const int stage = step < stages ? step : 2 * stages - 1 - step;
      const bool split = step >= stages && dice.chance(50);
      const auto backward = split ? ActionKind::kBackwardInput : ActionKind::kBackward;
      run(stage, {step < stages ? ActionKind::kForward : backward, m});
      if (split) weights.emplace_back(stage, m);
      if (step + 1 == 2 * stages) open.erase(next);
    }
    return orders;
  }
};

}  // namespace autopar::testing
