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
/// @param orders  [rank] compute actions of the whole stages
/// @param parts   [whole stage] what became of it, ascending; nothing if it has nothing to run
[[nodiscard]] inline std::vector<std::vector<ComputeAction>> orders_of_parts(
    std::vector<std::vector<ComputeAction>> orders, const std::vector<std::vector<StageId>>& parts) {
  for (auto& computes : orders) {
    std::vector<ComputeAction> divided;
    for (ComputeAction compute : computes) {
      auto stages = parts.at(compute.stage.index());
      if (compute.kind != ActionKind::kForward) std::reverse(stages.begin(), stages.end());
      for (const StageId stage : stages) {
        compute.stage = stage;
        divided.push_back(compute);
      }
    }
    computes = std::move(divided);
  }
  return orders;
}

}  // namespace autopar
