#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/schedule/action.hpp>
#include <autopar/schedule/concepts.hpp>
#include <autopar/schedule/pipeline.hpp>

namespace autopar::detail {

/// Checks that the compute actions of `stage` have one forward for each micro-batch and, later, one backward, whole or
/// in two parts.
/// @param whose  the owner of the stage for the message, or ""
/// @throws InvalidArgument otherwise
inline void check_computes(const std::vector<ComputeAction>& computes, std::size_t stage, int microbatches,
                           const std::string& whose = {}) {
  std::vector<std::optional<ActionKind>> last(static_cast<std::size_t>(microbatches));  // of each micro-batch
  const auto follows = [&](const ComputeAction compute) {
    if (compute.microbatch < 0 || compute.microbatch >= microbatches) return false;
    const auto before = std::exchange(last[static_cast<std::size_t>(compute.microbatch)], compute.kind);
    if (compute.kind == ActionKind::kForward) return !before.has_value();
    if (compute.kind == ActionKind::kBackwardWeight) return before == ActionKind::kBackwardInput;
    return gives_input_gradients(compute.kind) && before == ActionKind::kForward;
  };
  const auto is_through = [](std::optional<ActionKind> kind) { return kind && gives_weight_gradients(*kind); };
  const bool sound = std::ranges::all_of(computes, follows) && std::ranges::all_of(last, is_through);
  if (!sound) {
    throw InvalidArgument(
        "schedule policy: the order of stage " + std::to_string(stage) + whose + " must name each of the " +
        std::to_string(microbatches) +
        " micro-batches once as forward and, later, once as backward (whole, or as input backward and then "
        "weight backward)");
  }
}

/// Checks that every rank's compute actions belong to its stages.
/// @throws InvalidArgument otherwise
inline void check_rank_orders(const Pipeline& pipeline, const std::vector<std::vector<ComputeAction>>& orders,
                              int microbatches) {
  if (orders.size() != static_cast<std::size_t>(pipeline.ranks)) {
    throw InvalidArgument("schedule policy: orders of " + std::to_string(orders.size()) + " ranks, the pipeline has " +
                          std::to_string(pipeline.ranks));
  }
  std::vector<std::map<StageId, std::vector<ComputeAction>>> by_stage(orders.size());
  for (std::size_t r = 0; r < orders.size(); ++r) {
    for (const ComputeAction compute : orders[r]) by_stage[r][compute.stage].push_back(compute);
  }
  for (std::size_t s = 0; s < pipeline.stages.size(); ++s) {
    for (const Rank rank : pipeline.stages[s].ranks()) {
      check_computes(by_stage[rank.index()][StageId::of(s)], s, microbatches,
                     " on rank " + std::to_string(rank.value()));
      by_stage[rank.index()].erase(StageId::of(s));
    }
  }
  for (std::size_t r = 0; r < orders.size(); ++r) {
    if (by_stage[r].empty()) continue;
    throw InvalidArgument("schedule policy: the order of rank " + std::to_string(r) + " names stage " +
                          std::to_string(by_stage[r].begin()->first.value()) + ", which that rank does not run");
  }
}

}  // namespace autopar::detail
