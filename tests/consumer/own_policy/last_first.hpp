#pragma once

#include <vector>

#include <autopar/schedule/concepts.hpp>

/// A user's schedule: all forwards, then all backwards, the last micro-batch first.
struct LastFirst {
  using policy_category = autopar::schedule_policy_tag;

  [[nodiscard]] std::vector<autopar::ComputeAction> order(autopar::StageId, int, int microbatches) const {
    std::vector<autopar::ComputeAction> out;
    for (int m = 0; m < microbatches; ++m) out.push_back({autopar::ActionKind::kForward, m});
    for (int m = microbatches; m-- > 0;) out.push_back({autopar::ActionKind::kBackward, m});
    return out;
  }
  [[nodiscard]] int peak_activations(autopar::StageId, int, int microbatches) const { return microbatches; }
};
static_assert(autopar::SchedulePolicy<LastFirst>);
