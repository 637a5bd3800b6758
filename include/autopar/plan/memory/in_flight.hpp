#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <autopar/plan/model/slices.hpp>
#include <autopar/plan/model/staging.hpp>
#include <autopar/schedule/action.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar {

/// Whether a stage has made the parameter gradients of its first backward.
enum class FirstGradients : std::uint8_t { kNone, kComing, kMade };

/// Micro-batches that a stage has begun and not completed.
struct InFlight {
  int whole = 0;    ///< forward done, backward outstanding
  int waiting = 0;  ///< backward done except for parameter gradients
  FirstGradients gradients = FirstGradients::kMade;
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

/// The samples of a stage's micro-batches. What several hold at a time is taken to be in proportion to their samples,
/// of the largest ones.
class MicrobatchSamples {
 public:
  /// Micro-batches of one size.
  MicrobatchSamples() = default;
  /// @param sizes  of the replica's slices, ascending
  explicit MicrobatchSamples(const PieceSizes& sizes) {
    for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
      for (int i = 0; i < size->second; ++i) most_.push_back(most_.back() + size->first);
    }
  }

  /// Samples of so many micro-batches, at most. In units of the largest micro-batch, if all have one size.
  [[nodiscard]] std::int64_t most(int count) const {
    const auto all = static_cast<int>(most_.size()) - 1;
    return all == 0 ? count : most_[static_cast<std::size_t>(std::min(count, all))];
  }
  /// Of the smallest micro-batch, likewise.
  [[nodiscard]] std::int64_t least() const {
    const std::size_t all = most_.size() - 1;
    return all == 0 ? 1 : most_[all] - most_[all - 1];
  }
  /// @param one  bytes of the largest micro-batch
  [[nodiscard]] Bytes held(Bytes one, int count) const {
    const std::int64_t largest = most(1), bytes = one.value() * most(count);
    return Bytes((bytes + largest - 1) / largest);
  }

 private:
  std::vector<std::int64_t> most_{0};  ///< by count
};

/// Bytes of a stage for each micro-batch in flight, by stage.
struct HeldByMicrobatch {
  std::vector<Bytes> whole, waiting;
  std::vector<Bytes> read;       ///< read values, for whole and waiting ones and for the next one if there is one
  std::vector<Bytes> gradients;  ///< that the stage's first backward makes, see `makes_gradients`
  std::vector<Bytes> coming;     ///< while it makes them, see `StageMemory::coming`
  std::vector<bool> defers;      ///< whether the second half of a split backward makes them
  std::vector<MicrobatchSamples> samples;
  int microbatches = 1;

  [[nodiscard]] bool makes_gradients(const ComputeAction& compute) const {
    if (compute.kind == ActionKind::kBackwardInput) return !defers[compute.stage.index()];
    return compute.kind != ActionKind::kForward;
  }
  /// In units that all stages of a rank have in common.
  [[nodiscard]] Bytes of(std::size_t stage, const InFlight& now) const {
    const MicrobatchSamples& own = samples[stage];
    return whole[stage] * own.most(now.whole) + waiting[stage] * own.most(now.waiting) +
           read[stage] * own.most(std::min(now.whole + now.waiting + 1, microbatches)) +
           made(stage, now.gradients) * own.most(1);
  }
  [[nodiscard]] Bytes made(std::size_t stage, FirstGradients first) const {
    if (first == FirstGradients::kNone) return Bytes(0);
    return first == FirstGradients::kMade ? gradients[stage] : coming[stage];
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
    std::vector<InFlight> now(most.size(), InFlight{.gradients = FirstGradients::kNone}), at_peak = now;
    Bytes sum{}, peak{-1};
    const auto count = [&] {
      if (sum <= peak) return;
      peak = sum;
      at_peak = now;
    };
    for (const ComputeAction compute : computes) {
      const std::size_t s = compute.stage.index();
      sum -= bytes.of(s, now[s]);
      if (bytes.makes_gradients(compute) && now[s].gradients == FirstGradients::kNone) {
        now[s].gradients = FirstGradients::kComing;
        sum += bytes.of(s, now[s]);
        count();
        sum -= bytes.of(s, now[s]);
        now[s].gradients = FirstGradients::kMade;
      }
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
      count();
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
