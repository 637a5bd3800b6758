#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <tuple>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/core/ids.hpp>
#include <autopar/schedule/action.hpp>
#include <autopar/schedule/concepts.hpp>
#include <autopar/schedule/kind.hpp>

namespace autopar::oracle {

/// One compute action of a rank, without its micro-batch.
struct SaidAction {
  ActionKind kind = ActionKind::kForward;
  std::size_t chunk = 0;  ///< index among the rank's stages
};

/// Writes a rank's compute actions. Each said action gets the next micro-batch of its kind and stage; it is left out if
/// there is none left.
class ActionScribe {
 public:
  ActionScribe(const std::vector<int>& stages, int microbatches)
      : stages_(stages), microbatches_(microbatches), next_(stages.size()) {}

  void say(SaidAction compute) {
    const auto kind = compute.kind == ActionKind::kForward ? 0u : compute.kind == ActionKind::kBackwardWeight ? 2u : 1u;
    int& microbatch = next_[compute.chunk].of_kind[kind];
    if (microbatch >= microbatches_) return;
    computes_.push_back({compute.kind, microbatch++, StageId(stages_[compute.chunk])});
  }
  void say(std::int64_t times, std::initializer_list<SaidAction> phrase) {
    for (std::int64_t i = 0; i < times; ++i) {
      for (const SaidAction compute : phrase) say(compute);
    }
  }
  [[nodiscard]] std::vector<ComputeAction> written() && { return std::move(computes_); }

 private:
  struct Next {
    int of_kind[3] = {0, 0, 0};
  };
  const std::vector<int>& stages_;
  int microbatches_;
  std::vector<Next> next_;
  std::vector<ComputeAction> computes_;
};

/// The orders of the schedules, stated a second time, for rank number `place` of `places` (replicas count once) with
/// this number of chunks. Derived from the papers and not from the policies.
class ScheduleLaws {
 public:
  ScheduleLaws(int place, int places, int chunks, int microbatches, ActionScribe& scribe)
      : place_(place), places_(places), chunks_(chunks), microbatches_(microbatches), scribe_(scribe) {}

  /// @source Huang et al., NeurIPS 2019, arXiv:1811.06965
  void gpipe() {
    scribe_.say(microbatches_, {kF});
    scribe_.say(microbatches_, {kB});
  }
  /// As many forwards ahead as there are later stages.
  /// @source Narayanan et al., SC'21, arXiv:2104.04473, section 2.2
  void one_f_one_b() {
    scribe_.say(std::min(after(), microbatches_), {kF});
    scribe_.say(microbatches_, {kF, kB});
  }
  /// 1F1B in which weight backwards lag by as many micro-batches as there are earlier stages.
  /// @source Qi et al., ICLR 2024, arXiv:2401.10241, section 2.1
  void zb_h1() {
    const int lag = std::min(place_, microbatches_);
    scribe_.say(std::min(after(), microbatches_), {kF});
    scribe_.say(lag, {kF, kI});
    scribe_.say(microbatches_ - lag, {kF, kI, kW});
    scribe_.say(lag, {kW});
  }
  /// No idle time at equal durations: every rank starts when the first forward arrives and is busy until its end. With
  /// fewer micro-batches than fill the schedule, the missing ones are left out.
  /// @source Qi et al., NeurIPS 2024, arXiv:2405.15362, section 3
  void zb_v() {
    constexpr SaidAction kUp{ActionKind::kForward, 1}, kInput{ActionKind::kBackwardInput, 1},
        kWeight{ActionKind::kBackwardWeight, 1};
    const int from_here = places_ - place_, filled = std::max(microbatches_, 2 * places_ - 1);
    scribe_.say(2 * from_here - 1, {kF});                               // until the first micro-batch returns
    scribe_.say(place_, {kUp, kF});                                     // until its gradient comes
    scribe_.say(from_here, {kUp, kInput, kWeight});                     // until the gradient comes the second time
    scribe_.say(filled - places_, {kF, kI, kW, kUp, kInput, kWeight});  // steady state: one of each in turn
    scribe_.say(place_, {kI, kInput});                                  // the last gradients come from later positions
    scribe_.say(from_here, {kI, kW});
    scribe_.say(place_, {kWeight});
    scribe_.say(place_, {kW});
  }
  /// 1F1B over all chunks. Rounds of micro-batches pass the chunks one after the other, forwards ascending, backwards
  /// descending. There are as many rounds as have at least one micro-batch for each place; the first ones are larger by
  /// one.
  /// @source Narayanan et al., SC'21, arXiv:2104.04473, section 2.2.2
  void interleaved() {
    const int rounds = std::max(1, microbatches_ / places_), least = microbatches_ / rounds,
              more = microbatches_ % rounds;
    std::vector<std::tuple<int, int, int>> passes;  // round, chunk, micro-batch
    for (int m = 0; m < microbatches_; ++m) {
      const int in_larger = more * (least + 1);
      const int round = m < in_larger ? m / (least + 1) : more + (m - in_larger) / least;
      for (int c = 0; c < chunks_; ++c) passes.emplace_back(round, c, m);
    }
    std::sort(passes.begin(), passes.end());
    const std::size_t largest = static_cast<std::size_t>(least + (more > 0 ? 1 : 0));
    const std::size_t behind = static_cast<std::size_t>(after()), depth = static_cast<std::size_t>(chunks_);
    const std::size_t ahead = chunks_ == 1 ? behind : 2 * behind + (depth - 1) * largest;
    for (std::size_t k = 0; k < passes.size() + ahead; ++k) {
      if (k < passes.size()) scribe_.say({ActionKind::kForward, static_cast<std::size_t>(std::get<1>(passes[k]))});
      if (k < ahead || k - ahead >= passes.size()) continue;
      const auto chunk = static_cast<std::size_t>(std::get<1>(passes[k - ahead]));
      scribe_.say({ActionKind::kBackward, depth - 1 - chunk});
    }
  }

 private:
  static constexpr SaidAction kF{ActionKind::kForward}, kB{ActionKind::kBackward}, kI{ActionKind::kBackwardInput},
      kW{ActionKind::kBackwardWeight};

  [[nodiscard]] int after() const { return places_ - place_ - 1; }

  int place_, places_, chunks_, microbatches_;
  ActionScribe& scribe_;
};

/// Writes a rank's order. @throws InvalidArgument if plans store the orders of such schedules
inline void write_order(ScheduleLaws& laws, ScheduleKind schedule) {
  switch (schedule) {
    case ScheduleKind::kGPipe:
      return laws.gpipe();
    case ScheduleKind::kOneFOneB:
      return laws.one_f_one_b();
    case ScheduleKind::kInterleaved:
      return laws.interleaved();
    case ScheduleKind::kZbH1:
      return laws.zb_h1();
    case ScheduleKind::kZbV:
      return laws.zb_v();
    case ScheduleKind::kSynthesised:
      break;
  }
  throw InvalidArgument("oracle: there is no law of this schedule");
}

/// The number of micro-batches from which on the closed forms hold, if forward, input and weight backward take equally
/// long.
inline int filled_by(ScheduleKind kind, int positions) {
  switch (kind) {
    case ScheduleKind::kGPipe:
    case ScheduleKind::kOneFOneB:
      return 1;
    case ScheduleKind::kZbV:
      return 2 * positions - 1;
    default:
      return positions;
  }
}

}  // namespace autopar::oracle
