#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include <autopar/plan/model/staging.hpp>
#include <autopar/schedule/action.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar {

/// Whether a stage has made the parameter gradients of its first backward.
enum class FirstGradients : std::uint8_t { kNone, kComing, kMade };

/// What a stage has begun and not completed, as `MicrobatchSamples` counts micro-batches.
struct InFlight {
  std::int64_t whole = 0;    ///< forward done, backward outstanding
  std::int64_t waiting = 0;  ///< backward done except for parameter gradients
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

/// What micro-batches of a stage count by. What they hold is taken to be in proportion to their samples.
class MicrobatchSamples {
 public:
  /// Micro-batches of one size: each counts one.
  explicit MicrobatchSamples(int microbatches) : all_(microbatches) {}
  /// @param samples  of each micro-batch, in order @pre one of them is positive
  explicit MicrobatchSamples(std::vector<std::int64_t> samples) : of_(std::move(samples)) {
    most_ = of_;
    std::ranges::sort(most_, std::ranges::greater{});
    least_ = most_.back();
    largest_ = most_.front();
    std::partial_sum(most_.begin(), most_.end(), most_.begin());
    all_ = most_.back();
  }

  [[nodiscard]] std::int64_t of(int microbatch) const {
    return of_.empty() ? 1 : of_[static_cast<std::size_t>(microbatch)];
  }
  [[nodiscard]] std::int64_t largest() const { return largest_; }
  [[nodiscard]] std::int64_t least() const { return least_; }
  /// Of so many micro-batches, at most.
  [[nodiscard]] std::int64_t most(int count) const {
    if (count == 0 || of_.empty()) return count;
    return most_[std::min(static_cast<std::size_t>(count), most_.size()) - 1];
  }
  /// Of those in flight, and the largest one that may arrive ahead of its use.
  [[nodiscard]] std::int64_t arrived(const InFlight& now) const {
    return std::min(now.whole + now.waiting + largest_, all_);
  }
  /// @param one  bytes of the largest micro-batch
  [[nodiscard]] Bytes held(Bytes one, std::int64_t samples) const {
    return Bytes((one.value() * samples + largest_ - 1) / largest_);
  }

 private:
  std::vector<std::int64_t> of_;    ///< by micro-batch; empty: each counts one
  std::vector<std::int64_t> most_;  ///< of the largest ones, by their number less one
  std::int64_t all_ = 0, largest_ = 1, least_ = 1;
};

/// Micro-batches that each stage holds at the peak, the largest ones. @pre the schedule has a law
/// @param samples  [stage]
[[nodiscard]] inline std::vector<InFlight> in_flight_by_law(const Workload& work, const Staging& staging,
                                                            const std::vector<MicrobatchSamples>& samples) {
  std::vector<InFlight> out;
  for (int s = 0; s < staging.stages(); ++s) {
    const int peak = peak_in_flight(staging.schedule, work.loss_mode, s, staging.stages(), staging.microbatches);
    out.push_back({samples[static_cast<std::size_t>(s)].most(peak)});
  }
  return out;
}

/// Bytes of a stage for each micro-batch in flight, by stage.
struct HeldByMicrobatch {
  std::vector<Bytes> whole, waiting;
  std::vector<Bytes> read;       ///< read values, for whole and waiting ones and for the next one if there is one
  std::vector<Bytes> gradients;  ///< that the stage's first backward makes, see `makes_gradients`
  std::vector<Bytes> coming;     ///< while it makes them, see `StageMemory::coming`
  std::vector<bool> defers;      ///< whether the second half of a split backward makes them
  std::vector<MicrobatchSamples> samples;

  [[nodiscard]] bool makes_gradients(const ComputeAction& compute) const {
    if (compute.kind == ActionKind::kBackwardInput) return !defers[compute.stage.index()];
    return compute.kind != ActionKind::kForward;
  }
  /// In units that all stages of a rank have in common.
  [[nodiscard]] Bytes of(std::size_t stage, const InFlight& now) const {
    const MicrobatchSamples& own = samples[stage];
    return whole[stage] * now.whole + waiting[stage] * now.waiting + read[stage] * own.arrived(now) +
           made(stage, now.gradients) * own.largest();
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
      const std::int64_t own = bytes.samples[s].of(compute.microbatch);
      if (compute.kind == ActionKind::kForward) now[s].whole += own;
      if (gives_input_gradients(compute.kind)) now[s].whole -= own;
      if (compute.kind == ActionKind::kBackwardInput) now[s].waiting += own;
      if (compute.kind == ActionKind::kBackwardWeight) now[s].waiting -= own;
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
