#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <autopar/graph/algorithms/downsets.hpp>
#include <autopar/plan/concepts.hpp>
#include <autopar/plan/search/least_cuts.hpp>
#include <autopar/plan/search/stage_floor.hpp>
#include <autopar/plan/step/stage_table.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar::detail {

/// What is known of stages with one tensor degree.
struct DegreeOfStages {
  int degree;                      ///< ranks of a replica
  const StepObjective& objective;  ///< of one memory variant; treats replicas as ranks
  StageTable& table;
  StageFloor& floor;
};

/// Whether any staging with one stage a rank stays within limits. First, whether stages do that are looked at one by
/// one: the fewest ranks that all nodes outside a tail need. Values between stages may take more, so then all stagings
/// of such stages are tried.
class LimitedStagings {
 public:
  struct Limits {
    Bytes device, host;  ///< of a rank
  };

  /// @param degrees  that stages may have, ascending, with tables of the same tails
  LimitedStagings(const StepObjective& objective, std::vector<DegreeOfStages> degrees, const MemoryVariant& variant,
                  const Limits& limits, std::int64_t& budget)
      : objective_(objective),
        constraints_(objective.constraints()),
        degrees_(std::move(degrees)),
        table_(degrees_.front().table),
        tails_(table_.tails()),
        variant_(variant),
        limits_(limits),
        budget_(budget),
        most_stages_(constraints_.stages > 0
                         ? constraints_.stages
                         : std::min<int>(constraints_.world, static_cast<int>(tails_.node_count()))),
        needed_(tails_.size() * static_cast<std::size_t>(most_stages_ + 1), kUnknown) {
    for (int later = 0; later < most_stages_; ++later)
      in_flight_.push_back(
          peak_in_flight(variant.schedule, objective.work().loss_mode, 0, later + 1, variant.microbatches));
    for (const DegreeOfStages& each : degrees_) {
      auto& largest = largest_slice_.emplace_back();
      for (int replicas = 0; replicas <= constraints_.world / each.degree; ++replicas) {
        const auto slice = [&](int only) {
          return replicas == 0 ? 0 : each.objective.slices().at(variant.microbatches, replicas, only).largest;
        };
        largest.push_back({slice(0), slice(1)});
      }
    }
  }

  /// @return a staging within the limits; nothing if there is none or the budget ended
  [[nodiscard]] std::optional<LeastMemory> any() {
    if (needed(tails_.empty_set(), 0) > constraints_.world) return std::nullopt;
    std::optional<LeastMemory> found;
    extend(tails_.empty_set(), constraints_.world, found);
    return found;
  }

 private:
  static constexpr int kUnknown = -1, kNever = std::numeric_limits<int>::max() / 2;
  struct Chosen : StageNodes {
    int replicas, degree;
  };

  /// Steps in the time of one prediction.
  [[nodiscard]] std::int64_t steps_of_prediction() const {
    const Workload& work = objective_.work();
    return 100 + 20 * static_cast<std::int64_t>(work.graph.node_count()) +
           10 * static_cast<std::int64_t>(work.parameters.size());
  }
  [[nodiscard]] bool spend(std::int64_t steps) {
    budget_ -= steps;
    return budget_ > 0;
  }

  /// Fewest ranks for all nodes outside a tail.
  [[nodiscard]] int needed(DownsetId tail, int later) {
    if (tail == tails_.all_nodes()) return constraints_.stages == 0 || later == constraints_.stages ? 0 : kNever;
    if (later == most_stages_) return kNever;
    int& known = needed_[tail.index() * static_cast<std::size_t>(most_stages_ + 1) + static_cast<std::size_t>(later)];
    if (known != kUnknown) return known;
    int least = kNever;
    for_each_stage(tail, later, [&](const StageNodes& stage) {
      for (const DegreeOfStages& each : degrees_) {
        const int ranks = fewest(each, stage, later, std::min(constraints_.world, least - 1));
        if (ranks < kNever) least = std::min(least, ranks + needed(stage.to, later + 1));
      }
      return true;
    });
    return known = least;
  }
  /// Fewest ranks of one stage.
  [[nodiscard]] int fewest(const DegreeOfStages& each, const StageNodes& stage, int later, int most) {
    std::int64_t slice = 0;
    const auto [first, last] = table_.replicas(stage, later, most / each.degree);
    for (int replicas = first; replicas <= last; ++replicas) {
      const std::int64_t before = std::exchange(slice, slice_of(each, stage, replicas));
      if (variant_.zero == 0 && slice == before) continue;  // only samples are divided
      if (fits(each, stage, later, replicas)) return replicas * each.degree;
    }
    return kNever;
  }

  /// Tries all stagings, the last stage first, until one is within the limits. @return whether to go on
  bool extend(DownsetId tail, int ranks, std::optional<LeastMemory>& found) {
    if (tail == tails_.all_nodes()) {
      if (!spend(steps_of_prediction())) return false;
      Staging staging = chosen_staging();
      if (!staging.tensor.empty() && !meets(constraints_, objective_.whole(), staging)) return true;
      LeastMemory own = measured(std::move(staging));
      if (own.peak <= limits_.device && own.host <= limits_.host) found = std::move(own);
      return !found;
    }
    const int later = static_cast<int>(chosen_.size());
    for_each_stage(tail, later, [&](const StageNodes& stage) {
      const int rest = needed(stage.to, later + 1);
      for (const DegreeOfStages& each : degrees_) {
        const auto [first, last] = table_.replicas(stage, later, (ranks - rest) / each.degree);
        for (int replicas = first; ranks >= rest && replicas <= last; ++replicas) {
          if (!fits(each, stage, later, replicas)) continue;
          chosen_.push_back({stage, replicas, each.degree});
          const bool go_on = extend(stage.to, ranks - replicas * each.degree, found);
          chosen_.pop_back();
          if (!go_on) return false;
        }
      }
      return true;
    });
    return !found && budget_ > 0;
  }

  /// @param visit  visit(const StageNodes&): whether to go on
  template <class Visit>
  void for_each_stage(DownsetId tail, int later, const Visit& visit) {
    bool goes_on = true;
    table_.for_each_stage(tail, [&](const StageNodes& stage) {
      if (!goes_on || !(goes_on = spend(1))) return false;
      const auto may_hold = [&](const DegreeOfStages& each) {
        const int widest = table_.replicas(stage, later, constraints_.world / each.degree).second;
        return widest >= 1 && each.table.held(stage, widest) <= limits_.device.value();
      };
      if (std::ranges::none_of(degrees_, may_hold)) return false;
      const bool is_first = stage.to == tails_.all_nodes();
      if (is_first ? later + 1 < constraints_.stages : later + 1 == most_stages_) return true;
      return goes_on = visit(stage);
    });
  }

  /// Samples of the largest slice.
  [[nodiscard]] std::int64_t slice_of(const DegreeOfStages& each, const StageNodes& stage, int replicas) const {
    const auto& largest = largest_slice_[static_cast<std::size_t>(&each - degrees_.data())];
    return largest[static_cast<std::size_t>(replicas)][table_.is_only(stage) ? 1 : 0];
  }

  [[nodiscard]] bool fits(const DegreeOfStages& each, const StageNodes& stage, int later, int replicas) {
    const int in_flight = in_flight_[static_cast<std::size_t>(later)];
    std::int64_t least = each.table.held(stage, replicas) +
                         each.table.boundary(stage, slice_of(each, stage, replicas), in_flight, variant_.microbatches);
    if (constraints_.recompute == Recompute::kNever) {
      const auto sums = each.table.sized(variant_.microbatches, replicas, table_.is_only(stage)).of(stage);
      least += each.table.saved(stage, sums, in_flight, variant_.microbatches, replicas);
    }
    if (least > limits_.device.value()) return false;
    const std::size_t known = each.floor.size();
    const auto& held = each.floor(stage.nodes, table_.is_only(stage), in_flight, replicas, variant_);
    if (each.floor.size() > known) (void)spend(steps_of_prediction());
    return held.device <= limits_.device && held.host <= limits_.host;
  }

  [[nodiscard]] Staging chosen_staging() const {
    Staging staging = staging_of(chosen_, tails_.node_count(), variant_.microbatches, variant_.schedule);
    if (std::ranges::all_of(chosen_, [](const Chosen& stage) { return stage.degree == 1; })) return staging;
    for (auto stage = chosen_.rbegin(); stage != chosen_.rend(); ++stage) staging.tensor.push_back(stage->degree);
    return staging;
  }

  /// Of a staging with tensor shards: under any variant, since tables of degrees are only a lower bound.
  [[nodiscard]] LeastMemory measured(Staging staging) const {
    const StepObjective& objective = staging.tensor.empty() ? degrees_.front().objective : objective_;
    const auto memory = objective.least_memory(staging);
    return LeastMemory::of(std::move(staging), memory);
  }

  const StepObjective& objective_;
  const Constraints& constraints_;
  std::vector<DegreeOfStages> degrees_;
  const StageTable& table_;  // of the first degree: tails, and which replicas stages may have
  const DownsetLattice& tails_;
  const MemoryVariant& variant_;
  Limits limits_;
  std::int64_t& budget_;
  int most_stages_;
  std::vector<int> in_flight_;                                             // [later]
  std::vector<std::vector<std::array<std::int64_t, 2>>> largest_slice_{};  // [degree][replicas][whether the only stage]
  std::vector<int> needed_;                                                // [tail][later]
  std::vector<Chosen> chosen_;                                             // last stage first
};

}  // namespace autopar::detail
