#pragma once

#include <algorithm>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/schedule/concepts.hpp>

namespace autopar {

/// Alternates one forward and one backward once the pipeline is warm (1F1B). Same bubble as GPipe,
/// (stages - 1) / (microbatches + stages - 1) of a step for equal stage times, but a stage holds no more micro-batches
/// than there are stages from it to the end.
/// @source Narayanan et al., SC'21, arXiv:2104.04473, section 2.2.1 (PipeDream-Flush)
struct OneFOneB {
  using policy_category = schedule_policy_tag;

  /// Compute actions of `stage` [2 * microbatches]. @throws InvalidArgument if an argument is out of range
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

  /// Most micro-batches whose activations `stage` holds at once.
  [[nodiscard]] constexpr int peak_activations(StageId stage, int stages, int microbatches) const {
    return std::min(stages - stage.value(), microbatches);
  }
};
static_assert(SchedulePolicy<OneFOneB>);

}  // namespace autopar
