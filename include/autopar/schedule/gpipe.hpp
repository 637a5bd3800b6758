#pragma once

#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/schedule/concepts.hpp>

namespace autopar {

/// All forwards, then all backwards. A stage holds the activations of every micro-batch. For equal stage times the
/// bubble is (stages - 1) / (microbatches + stages - 1) of a step.
/// @source Huang et al., NeurIPS 2019, arXiv:1811.06965, section 2.3
struct GPipe {
  using policy_category = schedule_policy_tag;

  /// Compute actions of `stage` [2 * microbatches].
  /// @throws InvalidArgument if an argument is out of range
  [[nodiscard]] std::vector<ComputeAction> order(StageId stage, int stages, int microbatches) const {
    expect(stage.valid() && stage.value() < stages && microbatches >= 1, "GPipe: bad stage or micro-batches");
    std::vector<ComputeAction> out;
    for (int m = 0; m < microbatches; ++m) out.push_back({ActionKind::kForward, m});
    for (int m = 0; m < microbatches; ++m) out.push_back({ActionKind::kBackward, m});
    return out;
  }

  /// The largest number of micro-batches whose activations `stage` holds at once.
  [[nodiscard]] constexpr int peak_activations(StageId, int, int microbatches) const { return microbatches; }
};
static_assert(SchedulePolicy<GPipe>);

}  // namespace autopar
