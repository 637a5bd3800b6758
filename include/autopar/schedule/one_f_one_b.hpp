#pragma once

#include <algorithm>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/schedule/concepts.hpp>

namespace autopar {

/// 1F1B: alternates one forward and one backward after the warm-up. As in GPipe, the bubble is
/// `(stages - 1) / (microbatches + stages - 1)` of a step for equal stage times. A stage holds at most as many
/// micro-batches as there are stages from it to the last.
/// @source Narayanan et al., SC'21, arXiv:2104.04473, section 2.2.1 (PipeDream-Flush)
struct OneFOneB {
  using policy_category = schedule_policy_tag;

  /// Compute actions of `stage` [2 * microbatches].
  /// @throws InvalidArgument if an argument is out of range
  [[nodiscard]] std::vector<ComputeAction> order(StageId stage, int stages, int microbatches) const {
    expect(stage.valid() && stage.value() < stages && microbatches >= 1, "OneFOneB: bad stage or micro-batches");
    const int warmup = std::min(stages - stage.value() - 1, microbatches);
    std::vector<ComputeAction> out;
    for (int m = 0; m < warmup; ++m) out.push_back({ActionKind::kForward, m});
    for (int m = warmup; m < microbatches; ++m) {
      out.push_back({ActionKind::kForward, m});
      out.push_back({ActionKind::kBackward, m - warmup});
    }
    for (int m = microbatches - warmup; m < microbatches; ++m) out.push_back({ActionKind::kBackward, m});
    return out;
  }

  /// The largest number of micro-batches whose activations `stage` holds at once.
  [[nodiscard]] constexpr int peak_activations(StageId stage, int stages, int microbatches) const {
    return std::min(stages - stage.value(), microbatches);
  }
};
static_assert(SchedulePolicy<OneFOneB>);

}  // namespace autopar
