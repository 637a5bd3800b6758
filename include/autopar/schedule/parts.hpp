#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/schedule/concepts.hpp>

namespace autopar {

/// Orders of ranks for a pipeline in which every stage became several, one behind the other on the same ranks: a
/// forward runs the parts in their order, a backward, and each half of one, the other way round. Orders without a cycle
/// stay so.
/// @param orders  [rank] turns of the whole stages
/// @param parts   [whole stage] what became of it, ascending; nothing if it has nothing to run
[[nodiscard]] inline std::vector<std::vector<Turn>> orders_of_parts(std::vector<std::vector<Turn>> orders,
                                                                    const std::vector<std::vector<StageId>>& parts) {
  for (auto& turns : orders) {
    std::vector<Turn> divided;
    for (Turn turn : turns) {
      auto stages = parts.at(turn.stage.index());
      if (turn.kind != ActionKind::kForward) std::reverse(stages.begin(), stages.end());
      for (const StageId stage : stages) {
        turn.stage = stage;
        divided.push_back(turn);
      }
    }
    turns = std::move(divided);
  }
  return orders;
}

}  // namespace autopar
