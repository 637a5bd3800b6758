#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include <autopar/plan/model/staging.hpp>
#include <autopar/schedule/action.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar {

/// Micro-batches that a stage has begun and not completed.
struct InFlight {
  int whole = 0;    ///< forward done, backward outstanding
  int waiting = 0;  ///< backward done except for parameter gradients
  friend bool operator==(const InFlight&, const InFlight&) = default;
};

/// The most micro-batches of a stage that are forward and not yet backward, by the schedule's law. An estimate for
/// schedules whose orders must be counted (`in_flight_of`).
[[nodiscard]] inline int peak_in_flight(ScheduleKind schedule, bool loss_mode, int stage, int stages,
                                        int microbatches) {
  const ScheduleKind law = !loss_mode ? kForwardsFirst : has_closed_form(schedule) ? schedule : kDefaultSchedule;
  return traits_of(law).peak(stage, stages, 1, microbatches);
}

/// Micro-batches that each stage holds at the peak. @pre the schedule has a law
[[nodiscard]] inline std::vector<InFlight> in_flight_by_law(const Workload& work, const Staging& staging) {
  std::vector<InFlight> out;
  for (int s = 0; s < staging.stages(); ++s)
    out.push_back({peak_in_flight(staging.schedule, work.loss_mode, s, staging.stages(), staging.microbatches)});
  return out;
}

/// Bytes of a stage for each micro-batch in flight, by stage.
struct HeldByMicrobatch {
  std::vector<Bytes> whole, waiting;
  std::vector<Bytes> read;  ///< read values, for whole and waiting ones and for the next one if there is one
  int microbatches = 1;

  [[nodiscard]] Bytes of(std::size_t stage, const InFlight& now) const {
    return whole[stage] * now.whole + waiting[stage] * now.waiting +
           read[stage] * std::min(now.whole + now.waiting + 1, microbatches);
  }
};

/// Micro-batches of each stage in flight when its ranks hold most; of a stage's replicas, those of the one that holds
/// most.
/// @param orders  [rank]
[[nodiscard]] inline std::vector<InFlight> in_flight_of(const std::vector<std::vector<ComputeAction>>& orders,
                                                        const HeldByMicrobatch& bytes) {
  std::vector<InFlight> most(bytes.whole.size());
  std::vector<Bytes> most_of(most.size(), Bytes(-1));
  for (const auto& computes : orders) {
    std::vector<InFlight> now(most.size()), at_peak = now;
    Bytes sum{}, peak{-1};
    for (const ComputeAction compute : computes) {
      const std::size_t s = compute.stage.index();
      sum -= bytes.of(s, now[s]);
      switch (compute.kind) {
        case ActionKind::kForward:
          ++now[s].whole;
          break;
        case ActionKind::kBackwardInput:
          --now[s].whole, ++now[s].waiting;
          break;
        case ActionKind::kBackwardWeight:
          --now[s].waiting;
          break;
        default:
          --now[s].whole;
      }
      sum += bytes.of(s, now[s]);
      if (sum <= peak) continue;
      peak = sum;
      at_peak = now;
    }
    for (std::size_t s = 0; s < most.size(); ++s) {
      if (bytes.of(s, at_peak[s]) <= most_of[s]) continue;
      most_of[s] = bytes.of(s, at_peak[s]);
      most[s] = at_peak[s];
    }
  }
  return most;
}

}  // namespace autopar
