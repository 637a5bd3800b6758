#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <autopar/graph/algorithms/downsets.hpp>
#include <autopar/plan/search/cut_tables.hpp>
#include <autopar/plan/search/least_cuts.hpp>
#include <autopar/plan/search/stage_floor.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar::detail {

/// What is known of stages with one tensor degree.
struct DegreeOfStages {
  int degree;                      ///< ranks of a replica
  const StepObjective& objective;  ///< treats replicas as ranks
  CutTables& tables;
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

  /// @param degrees  that stages may have, with tables of the same tails
  LimitedStagings(const StepObjective& objective, std::vector<DegreeOfStages> degrees, const MemoryVariant& variant,
                  const Limits& limits, std::int64_t& budget)
      : objective_(objective),
        constraints_(objective.constraints()),
        degrees_(std::move(degrees)),
        tails_(degrees_.front().tables.tails()),
        variant_(variant),
        limits_(limits),
        budget_(budget),
        most_stages_(constraints_.stages > 0
                         ? constraints_.stages
                         : std::min<int>(constraints_.world, static_cast<int>(tails_.node_count()))),
        in_flight_(static_cast<std::size_t>(most_stages_)),
        needed_(tails_.size() * static_cast<std::size_t>(most_stages_ + 1), kUnknown) {
    for (int later = 0; later < most_stages_; ++later) {
      in_flight_[static_cast<std::size_t>(later)] =
          peak_in_flight(variant.schedule, objective.work().loss_mode, 0, later + 1, variant.microbatches);
    }
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
    extend(tails_.empty_set(), 0, constraints_.world, found);
    return found;
  }

 private:
  static constexpr int kUnknown = -1, kNever = std::numeric_limits<int>::max() / 2;
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
    const std::size_t cell =
        tail.index() * static_cast<std::size_t>(most_stages_ + 1) + static_cast<std::size_t>(later);
    if (needed_[cell] != kUnknown) return needed_[cell];
    int least = kNever;
    for_each_stage(tail, later, [&](DownsetId to, NodeMask nodes) {
      for (const DegreeOfStages& each : degrees_) {
        const int ranks = fewest(each, tail, to, nodes, later, std::min(constraints_.world, least - 1));
        if (ranks < kNever) least = std::min(least, ranks + needed(to, later + 1));
      }
      return true;
    });
    return needed_[cell] = least;
  }
  /// Fewest ranks of one stage.
  [[nodiscard]] int fewest(const DegreeOfStages& each, DownsetId tail, DownsetId to, NodeMask nodes, int later,
                           int most) {
    std::int64_t slice = 0;
    for (int replicas = first_replicas(later); replicas <= last_replicas(nodes, later, most / each.degree);
         ++replicas) {
      const std::int64_t before = std::exchange(slice, slice_of(each, nodes, replicas));
      if (variant_.zero == 0 && slice == before) continue;  // only samples are divided
      if (fits(each, tail, to, nodes, later, replicas)) return replicas * each.degree;
    }
    return kNever;
  }

  /// Tries all stagings, the last stage first, until one is within the limits. @return whether to go on
  bool extend(DownsetId tail, int later, int ranks, std::optional<LeastMemory>& found) {
    if (tail == tails_.all_nodes()) {
      if (!spend(steps_of_prediction())) return false;
      Staging staging = chosen_staging();
      if (has_shards() && !meets(constraints_, objective_.whole(), staging)) return true;
      LeastMemory own = measured(std::move(staging));
      if (own.peak <= limits_.device && own.host <= limits_.host) found = std::move(own);
      return !found;
    }
    for_each_stage(tail, later, [&](DownsetId to, NodeMask nodes) {
      const int rest = needed(to, later + 1);
      for (const DegreeOfStages& each : degrees_) {
        const int most = last_replicas(nodes, later, (ranks - rest) / each.degree);
        for (int replicas = first_replicas(later); ranks >= rest && replicas <= most; ++replicas) {
          if (!fits(each, tail, to, nodes, later, replicas)) continue;
          chosen_.push_back({nodes, replicas, each.degree});
          const bool go_on = extend(to, later + 1, ranks - replicas * each.degree, found);
          chosen_.pop_back();
          if (!go_on) return false;
        }
      }
      return true;
    });
    return !found && budget_ > 0;
  }
  [[nodiscard]] bool has_shards() const {
    return std::ranges::any_of(chosen_, [](const Chosen& stage) { return stage.degree > 1; });
  }

  /// @param visit  visit(DownsetId to, NodeMask nodes): whether to go on
  template <class Visit>
  void for_each_stage(DownsetId tail, int later, const Visit& visit) {
    NodeMask nodes = 0;
    bool goes_on = true;
    tails_.for_each_superset(
        tail,
        [&](NodeId node, DownsetId to) {
          nodes |= bit(node);
          if (!goes_on || !(goes_on = spend(1))) return false;
          const auto may_hold = [&](const DegreeOfStages& each) {
            const int widest = last_replicas(nodes, later, constraints_.world / each.degree);
            return widest >= 1 && each.tables.held(tail, to, nodes, widest) <= limits_.device.value();
          };
          if (std::ranges::none_of(degrees_, may_hold)) return false;
          if (to == tails_.all_nodes() ? constraints_.stages > 0 && later + 1 < constraints_.stages
                                       : later + 1 == most_stages_) {
            return true;
          }
          return goes_on = visit(to, nodes);
        },
        [&](NodeId node) { nodes &= ~bit(node); });
  }

  /// Replicas of the stage with so many later ones, if they are fixed; otherwise 0.
  [[nodiscard]] int fixed_replicas(int later) const {
    if (constraints_.replicas_of_each > 0) return constraints_.replicas_of_each;
    if (constraints_.replicas.empty()) return 0;
    return constraints_.replicas[constraints_.replicas.size() - 1 - static_cast<std::size_t>(later)];
  }
  [[nodiscard]] int first_replicas(int later) const { return std::max(1, fixed_replicas(later)); }
  [[nodiscard]] int last_replicas(NodeMask nodes, int later, int most) const {
    const int fixed = fixed_replicas(later);
    if ((nodes & degrees_.front().tables.whole_batch()) != 0) return fixed > 1 ? 0 : std::min(1, most);
    return fixed > 0 ? (fixed <= most ? fixed : 0) : most;
  }

  /// Samples of the largest slice.
  [[nodiscard]] std::int64_t slice_of(const DegreeOfStages& each, NodeMask nodes, int replicas) const {
    const auto& largest = largest_slice_[static_cast<std::size_t>(&each - degrees_.data())];
    return largest[static_cast<std::size_t>(replicas)][nodes == each.tables.all() ? 1 : 0];
  }

  [[nodiscard]] bool fits(const DegreeOfStages& each, DownsetId tail, DownsetId to, NodeMask nodes, int later,
                          int replicas) {
    CutTables& tables = each.tables;
    const bool only = nodes == tables.all();
    const int in_flight = in_flight_[static_cast<std::size_t>(later)];
    std::int64_t least = tables.held(tail, to, nodes, replicas);
    least += tables.boundary(nodes).bytes(slice_of(each, nodes, replicas), in_flight, variant_.microbatches);
    if (constraints_.recompute == Recompute::kNever) {
      const auto& sums = tables.sized(variant_.microbatches, replicas, only).sums;
      const std::int64_t saved = (sums[to.index()].saved - sums[tail.index()].saved) * in_flight;
      least += saved - tables.not_at_once(tail, to, nodes, saved, variant_.microbatches, replicas);
    }
    if (least > limits_.device.value()) return false;
    const std::size_t known = each.floor.size();
    const auto& held = each.floor(nodes, only, in_flight, replicas, variant_);
    if (each.floor.size() > known) (void)spend(steps_of_prediction());
    return held.device <= limits_.device && held.host <= limits_.host;
  }

  [[nodiscard]] Staging chosen_staging() const {
    Staging staging{std::vector<int>(tails_.node_count(), 0), {}, variant_.microbatches, variant_.schedule};
    for (std::size_t i = chosen_.size(); i-- > 0;) {
      for (NodeMask rest = chosen_[i].nodes; rest != 0; rest &= rest - 1)
        staging.stage_of[static_cast<std::size_t>(std::countr_zero(rest))] = staging.stages();
      staging.replicas.push_back(chosen_[i].replicas);
      if (has_shards()) staging.tensor.push_back(chosen_[i].degree);
    }
    return staging;
  }

  [[nodiscard]] LeastMemory measured(Staging staging) const {
    if (has_shards()) {
      const auto memory = objective_.least_memory(staging);
      return LeastMemory::of(std::move(staging), memory);
    }
    const Workload& work = objective_.work();
    const SizedPipeline sized =
        make_pipeline(work, staging, place(staging, RankPlacement::kReplicasTogether), constraints_);
    const auto memory = least_predicted(objective_, staging, sized, variant_, in_flight_by_law(work, staging),
                                        fixed_memory(work, constraints_, staging, variant_.zero, variant_.offload),
                                        segments_in_stages(work, staging));
    return LeastMemory::of(std::move(staging), memory);
  }

  struct Chosen {
    NodeMask nodes;
    int replicas, degree;
  };
  const StepObjective& objective_;
  const Constraints& constraints_;
  std::vector<DegreeOfStages> degrees_;
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
