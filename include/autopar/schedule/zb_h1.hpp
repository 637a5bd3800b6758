#pragma once

#include <algorithm>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/schedule/concepts.hpp>

namespace autopar {

/// ZB-H1: 1F1B with backwards in two parts. Input gradients are sent as early as in 1F1B. The weight backward of stage
/// s comes s micro-batches later and fills idle time at the end. For equal stages with times F, B and W the bubble is
/// (stages - 1) * (F + B - W). At F = B = W, with at least as many micro-batches as stages, it is (stages - 1) / (3 *
/// microbatches + stages - 1) of a step. Every stage holds as many micro-batches as the first stage of 1F1B.
/// @source Qi et al., ICLR 2024, arXiv:2401.10241, section 2.1
struct ZbH1 {
  using policy_category = schedule_policy_tag;

  /// Compute actions of `stage` [3 * microbatches].
  /// @throws InvalidArgument if an argument is out of range
  [[nodiscard]] std::vector<ComputeAction> order(StageId stage, int stages, int microbatches) const {
    expect(stage.valid() && stage.value() < stages && microbatches >= 1, "ZbH1: bad stage or micro-batches");
    const int warmup = stages - stage.value() - 1, delay = stage.value();
    std::vector<ComputeAction> out;
    for (int m = 0; m < std::min(warmup, microbatches); ++m) out.push_back({ActionKind::kForward, m});
    for (int m = 0; m < microbatches; ++m) {
      if (m + warmup < microbatches) out.push_back({ActionKind::kForward, m + warmup});
      out.push_back({ActionKind::kBackwardInput, m});
      if (m >= delay) out.push_back({ActionKind::kBackwardWeight, m - delay});
    }
    for (int m = std::max(0, microbatches - delay); m < microbatches; ++m) {
      out.push_back({ActionKind::kBackwardWeight, m});
    }
    return out;
  }

  /// The largest number of micro-batches that `stage` holds from forward to weight backward.
  [[nodiscard]] constexpr int peak_activations(StageId, int stages, int microbatches) const {
    return std::min(stages, microbatches);
  }
};
static_assert(SchedulePolicy<ZbH1>);

}  // namespace autopar
