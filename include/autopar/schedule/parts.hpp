#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/schedule/concepts.hpp>

namespace autopar {

/// The orders of ranks after every stage was divided into several, one after the other on the same ranks. A forward
/// runs the parts in order; a backward, and each half of one, runs them in reverse. Orders without a cycle stay so.
/// @param orders  [rank] compute actions of the undivided stages
/// @param parts   [undivided stage] its parts, ascending; empty if it has nothing to run
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
