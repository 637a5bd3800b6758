#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <autopar/graph/algorithms/downsets.hpp>
#include <autopar/plan/search/cut_tables.hpp>
#include <autopar/plan/search/effort.hpp>
#include <autopar/plan/search/least_cuts.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar {

namespace detail {

/// What is the same for all stages of a staging.
struct MemoryVariant {
  int microbatches = 1;
  ScheduleKind schedule = kDefaultSchedule;
  int zero = 0;
  Offload offload = Offload::kNone;
};

/// The prediction for every stage with as much recomputed as leaves least.
/// @param fixed     `fixed_memory` of the staging under the variant
/// @param segments  that may be recomputed
[[nodiscard]] inline std::vector<StageMemory> least_predicted(const StepObjective& objective, const Staging& staging,
                                                              const SizedPipeline& sized, const MemoryVariant& variant,
                                                              const std::vector<InFlight>& in_flight,
                                                              const std::vector<StageMemory>& fixed,
                                                              const StageSegments& segments) {
  const Recompute recompute = objective.constraints().recompute;
  MemoryOptimizations optimizations{variant.zero, {}, variant.offload};
  if (recompute != Recompute::kNever) {
    const RecomputeChoice choice(objective.work(), staging, sized, objective.slices(), segments, in_flight, fixed);
    optimizations.recomputed = recompute == Recompute::kAlways ? choice.everything() : choice.to_fit(Bytes(0));
  }
  return predict_memory(objective.work(), staging, sized, objective.slices(), in_flight, optimizations, fixed);
}

/// What a stage holds at least, whatever the stages around it: the planner's own prediction, with everything else in
/// one other stage on all ranks. A value that several stages read counts once, a tied parameter's state is shared by
/// most.
class StageFloor {
 public:
  struct Held {
    Bytes device{}, host{};
  };

  explicit StageFloor(const StepObjective& objective) : objective_(objective) {}

  /// @param in_flight  micro-batches that the stage holds
  [[nodiscard]] const Held& operator()(NodeMask nodes, bool only, int in_flight, int replicas,
                                       const MemoryVariant& variant) {
    const Key key{nodes,
                  in_flight,
                  replicas,
                  variant.microbatches,
                  static_cast<int>(variant.schedule),
                  variant.zero,
                  static_cast<int>(variant.offload)};
    const auto [entry, added] = held_.try_emplace(key);
    if (added) entry->second = worked_out(nodes, only, in_flight, replicas, variant);
    return entry->second;
  }
  /// How many were worked out.
  [[nodiscard]] std::size_t size() const { return held_.size(); }

 private:
  using Key = std::tuple<NodeMask, int, int, int, int, int, int>;
  struct Hash {
    std::size_t operator()(const Key& key) const {
      return std::apply(
          [](auto... parts) {
            std::uint64_t hash = 0;
            ((hash = (hash ^ static_cast<std::uint64_t>(parts)) * 0x9E3779B97F4A7C15ull, hash ^= hash >> 29), ...);
            return static_cast<std::size_t>(hash);
          },
          key);
    }
  };

  [[nodiscard]] Held worked_out(NodeMask nodes, bool only, int in_flight, int replicas, const MemoryVariant& variant) {
    const Workload& work = objective_.work();
    Staging staging{std::vector<int>(work.graph.node_count(), 1), {replicas}, variant.microbatches, variant.schedule};
    if (!only) staging.replicas.push_back(objective_.constraints().world);
    for (NodeMask rest = nodes; rest != 0; rest &= rest - 1)
      staging.stage_of[static_cast<std::size_t>(std::countr_zero(rest))] = 0;
    const auto [shape, added] = shapes_.try_emplace(nodes);
    if (added) {
      std::vector<Mesh> meshes;  // only which are the same matters
      for (int s = 0; s < staging.stages(); ++s) meshes.push_back({Rank(s)});
      shape->second.sized = make_pipeline(work, staging, std::move(meshes), 2, objective_.constraints().buckets);
      shape->second.segments = segments_in_stages(work, staging);
      if (!only) shape->second.segments.back().clear();
    }
    const Key key{nodes,
                  0,
                  replicas,
                  variant.microbatches,
                  static_cast<int>(variant.schedule),
                  variant.zero,
                  static_cast<int>(variant.offload)};
    const auto [fixed, is_new] = fixed_.try_emplace(key);
    if (is_new) fixed->second = fixed_memory(work, objective_.constraints(), staging, variant.zero, variant.offload);
    std::vector<InFlight> held(staging.replicas.size());
    held.front().whole = in_flight;
    const StageMemory memory =
        least_predicted(objective_, staging, shape->second.sized, variant, held, fixed->second, shape->second.segments)
            .front();
    return {memory.total(), memory.host};
  }

  struct Shape {
    SizedPipeline sized;
    StageSegments segments;
  };
  const StepObjective& objective_;
  std::unordered_map<Key, Held, Hash> held_;
  std::unordered_map<Key, std::vector<StageMemory>, Hash> fixed_;
  std::unordered_map<NodeMask, Shape> shapes_;
};

/// Whether any staging with one stage a rank stays within limits: first whether stages do that are looked at one by
/// one, by the fewest ranks that all nodes outside a tail need; then, as what is between stages may take more, all
/// stagings of such stages.
class LimitedStagings {
 public:
  struct Limits {
    Bytes device, host;  ///< of a rank
  };

  LimitedStagings(const StepObjective& objective, CutTables& tables, StageFloor& floor, const MemoryVariant& variant,
                  const Limits& limits, std::int64_t& budget)
      : objective_(objective),
        constraints_(objective.constraints()),
        tables_(tables),
        floor_(floor),
        variant_(variant),
        limits_(limits),
        budget_(budget),
        most_stages_(constraints_.stages > 0
                         ? constraints_.stages
                         : std::min<int>(constraints_.world, static_cast<int>(tables.tails().node_count()))),
        needed_(tables.tails().size() * static_cast<std::size_t>(most_stages_ + 1), kUnknown) {}

  /// @return nothing if there is none or the budget ended
  [[nodiscard]] std::optional<LeastMemory> any() {
    if (needed(tables_.tails().empty_set(), 0) > constraints_.world) return std::nullopt;
    std::optional<LeastMemory> found;
    extend(tables_.tails().empty_set(), 0, constraints_.world, found);
    return found;
  }

 private:
  static constexpr int kUnknown = -1, kNever = std::numeric_limits<int>::max() / 2;
  /// Steps that one prediction takes as long as.
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
    if (tail == tables_.tails().all_nodes())
      return constraints_.stages == 0 || later == constraints_.stages ? 0 : kNever;
    if (later == most_stages_) return kNever;
    const std::size_t cell =
        tail.index() * static_cast<std::size_t>(most_stages_ + 1) + static_cast<std::size_t>(later);
    if (needed_[cell] != kUnknown) return needed_[cell];
    int least = kNever;
    for_each_stage(tail, later, [&](DownsetId to, NodeMask nodes) {
      const int most = last_replicas(nodes, later, std::min(constraints_.world, least - 1));
      std::int64_t slice = 0;
      for (int replicas = first_replicas(later); replicas <= most; ++replicas) {
        const std::int64_t before = std::exchange(slice, slice_of(nodes, replicas));
        if (variant_.zero == 0 && slice == before) continue;  // nothing is shared but samples
        if (!fits(tail, to, nodes, later, replicas)) continue;
        least = std::min(least, replicas + needed(to, later + 1));
        break;
      }
      return true;
    });
    return needed_[cell] = least;
  }

  /// All stagings, the last stage first, until one stays within the limits. @return whether to go on
  bool extend(DownsetId tail, int later, int ranks, std::optional<LeastMemory>& found) {
    if (tail == tables_.tails().all_nodes()) {
      if (!spend(steps_of_prediction())) return false;
      LeastMemory own = measured();
      if (own.peak <= limits_.device && own.host <= limits_.host) found = std::move(own);
      return !found;
    }
    for_each_stage(tail, later, [&](DownsetId to, NodeMask nodes) {
      const int rest = needed(to, later + 1);
      for (int replicas = first_replicas(later); replicas <= last_replicas(nodes, later, ranks - rest); ++replicas) {
        if (!fits(tail, to, nodes, later, replicas)) continue;
        chosen_.emplace_back(nodes, replicas);
        const bool go_on = extend(to, later + 1, ranks - replicas, found);
        chosen_.pop_back();
        if (!go_on) return false;
      }
      return true;
    });
    return !found && budget_ > 0;
  }

  /// @param visit  visit(DownsetId to, NodeMask nodes): whether to go on
  template <class Visit>
  void for_each_stage(DownsetId tail, int later, const Visit& visit) {
    NodeMask nodes = 0;
    bool goes_on = true;
    tables_.tails().for_each_superset(
        tail,
        [&](NodeId node, DownsetId to) {
          nodes |= bit(node);
          if (!goes_on || !(goes_on = spend(1))) return false;
          const int widest = last_replicas(nodes, later, constraints_.world);
          if (widest < 1 || tables_.held(tail, to, nodes, widest) > limits_.device.value()) return false;
          if (to == tables_.tails().all_nodes() ? constraints_.stages > 0 && later + 1 < constraints_.stages
                                                : later + 1 == most_stages_) {
            return true;
          }
          return goes_on = visit(to, nodes);
        },
        [&](NodeId node) { nodes &= ~bit(node); });
  }

  /// Of the stage with so many later ones, if they are fixed; else from 1 to what is left.
  [[nodiscard]] int fixed_replicas(int later) const {
    if (constraints_.replicas_of_each > 0) return constraints_.replicas_of_each;
    if (constraints_.replicas.empty()) return 0;
    return constraints_.replicas[constraints_.replicas.size() - 1 - static_cast<std::size_t>(later)];
  }
  [[nodiscard]] int first_replicas(int later) const { return std::max(1, fixed_replicas(later)); }
  [[nodiscard]] int last_replicas(NodeMask nodes, int later, int most) const {
    const int fixed = fixed_replicas(later);
    if ((nodes & tables_.whole_batch()) != 0) return fixed > 1 ? 0 : std::min(1, most);
    return fixed > 0 ? (fixed <= most ? fixed : 0) : most;
  }

  /// Samples of the largest.
  [[nodiscard]] std::int64_t slice_of(NodeMask nodes, int replicas) const {
    return objective_.slices().at(variant_.microbatches, replicas, nodes == tables_.all() ? 1 : 0).largest;
  }

  [[nodiscard]] bool fits(DownsetId tail, DownsetId to, NodeMask nodes, int later, int replicas) {
    const bool only = nodes == tables_.all();
    const int in_flight =
        peak_in_flight(variant_.schedule, objective_.work().loss_mode, 0, later + 1, variant_.microbatches);
    std::int64_t least = tables_.held(tail, to, nodes, replicas);
    least += tables_.boundary(nodes).bytes(slice_of(nodes, replicas), in_flight, variant_.microbatches);
    if (constraints_.recompute == Recompute::kNever) {
      const auto& sums = tables_.sized(variant_.microbatches, replicas, only).sums;
      const std::int64_t saved = (sums[to.index()].saved - sums[tail.index()].saved) * in_flight;
      least += saved - tables_.not_at_once(tail, to, nodes, saved, variant_.microbatches, replicas);
    }
    if (least > limits_.device.value()) return false;
    const std::size_t known = floor_.size();
    const auto& held = floor_(nodes, only, in_flight, replicas, variant_);
    if (floor_.size() > known) (void)spend(steps_of_prediction());
    return held.device <= limits_.device && held.host <= limits_.host;
  }

  [[nodiscard]] LeastMemory measured() const {
    Staging staging{std::vector<int>(tables_.tails().node_count(), 0), {}, variant_.microbatches, variant_.schedule};
    for (std::size_t i = chosen_.size(); i-- > 0;) {
      for (NodeMask rest = chosen_[i].first; rest != 0; rest &= rest - 1)
        staging.stage_of[static_cast<std::size_t>(std::countr_zero(rest))] = staging.stages();
      staging.replicas.push_back(chosen_[i].second);
    }
    const Workload& work = objective_.work();
    const SizedPipeline sized =
        make_pipeline(work, staging, place(staging, RankPlacement::kReplicasTogether), constraints_);
    const auto memory = least_predicted(objective_, staging, sized, variant_, in_flight_by_law(work, staging),
                                        fixed_memory(work, constraints_, staging, variant_.zero, variant_.offload),
                                        segments_in_stages(work, staging));
    return LeastMemory::of(std::move(staging), memory);
  }

  const StepObjective& objective_;
  const Constraints& constraints_;
  CutTables& tables_;
  StageFloor& floor_;
  const MemoryVariant& variant_;
  Limits limits_;
  std::int64_t& budget_;
  int most_stages_;
  std::vector<int> needed_;                       // [tail][later]
  std::vector<std::pair<NodeMask, int>> chosen_;  // nodes and replicas, last stage first
};

/// Under ever lower limits, all variants in turn, until nothing is left below.
class LeastStaging {
 public:
  LeastStaging(const StepObjective& objective, std::int64_t budget)
      : objective_(objective), floor_(objective), whole_(budget), budget_(budget) {}

  /// @param start  any staging, or nothing
  [[nodiscard]] std::optional<LeastMemory> best(std::optional<LeastMemory> start) {
    const Constraints& constraints = objective_.constraints();
    const Bytes any(std::numeric_limits<std::int64_t>::max() / 4);
    const Bytes host = constraints.host_memory.value_or(any);
    const auto lower = [&](const LeastMemory& found) { return LimitedStagings::Limits{found.peak - Bytes(1), host}; };
    const bool holds = start && start->host_holds(constraints);
    std::optional<LeastMemory> least = holds ? start : std::nullopt;
    descend(least, least ? lower(*least) : LimitedStagings::Limits{any, host}, lower);
    if (!least && budget_ > 0) {
      // Hosts hold none of them: the one that they hold most nearly.
      least = std::move(start);
      const auto nearer = [&](const LeastMemory& found) { return LimitedStagings::Limits{any, found.host - Bytes(1)}; };
      descend(least, least ? nearer(*least) : LimitedStagings::Limits{any, any}, nearer);
    }
    if (!least) least = std::move(start);
    if (least) least->proven = budget_ > 0;
    if (least) least->steps = whole_ - budget_;
    return least;
  }

 private:
  template <class Lower>
  void descend(std::optional<LeastMemory>& least, LimitedStagings::Limits limits, const Lower& lower) {
    for (const MemoryVariant& variant : variants()) {
      while (budget_ > 0) {
        auto found = LimitedStagings(objective_, tables_of(variant), floor_, variant, limits, budget_).any();
        if (!found) break;
        limits = lower(*found);
        least = std::move(found);
      }
    }
  }

  /// One stage behind for each micro-batch ahead is the least of the laws.
  [[nodiscard]] std::vector<MemoryVariant> variants() const {
    const Constraints& constraints = objective_.constraints();
    std::vector<ScheduleKind> schedules;
    for (const ScheduleKind kind : constraints.schedules) {
      if (traits_of(kind).in_flight == InFlightLaw::kStagesBehind) {
        schedules = {kind};
        break;
      }
      if (has_closed_form(kind)) schedules.push_back(kind);
    }
    std::vector<MemoryVariant> out;
    for (const ScheduleKind schedule : schedules) {
      for (const int microbatches : constraints.microbatches) {
        for (const int zero : constraints.zero_levels) {
          if (constraints.world == 1 && zero != constraints.zero_levels.front()) continue;
          for (const Offload offload : constraints.offloads) out.push_back({microbatches, schedule, zero, offload});
        }
      }
    }
    return out;
  }

  /// Which know what a ZeRO level and a place for the optimizer leave at least.
  struct Tables {
    Tables(const StepObjective& objective, const MemoryVariant& variant)
        : constraints(objective.constraints()), under(objective.under(constraints)) {
      constraints.zero_levels = {variant.zero};
      constraints.offloads = {variant.offload};
      cuts = CutTables::make(under, std::numeric_limits<std::int32_t>::max());
    }
    Tables(const Tables&) = delete;  // the objective refers to the other members
    Tables& operator=(const Tables&) = delete;

    Constraints constraints;
    StepObjective under;
    std::optional<CutTables> cuts;
  };
  [[nodiscard]] CutTables& tables_of(const MemoryVariant& variant) {
    return *tables_.try_emplace({variant.zero, variant.offload}, objective_, variant).first->second.cuts;
  }

  const StepObjective& objective_;
  StageFloor floor_;
  std::map<std::pair<int, Offload>, Tables> tables_;
  std::int64_t whole_, budget_;
};

}  // namespace detail

/// The staging with one stage a rank that needs the least memory: over all convex cuts, replicas, micro-batches and
/// memory optimizations where they are few enough, and then proven; else along one topological order (on more than
/// eight ranks: with even replicas). Nothing if the constraints leave no such staging.
[[nodiscard]] inline std::optional<LeastMemory> least_memory(const StepObjective& objective) {
  auto start = detail::LeastMemoryCuts(objective).best();
  const auto& constraints = objective.constraints();
  const bool is_small = objective.work().graph.node_count() <= detail::kMaskNodes &&
                        constraints.world <= detail::kLeastMemoryRanks &&
                        count_downsets(objective.work().graph, detail::kSearchTails).has_value();
  if (!is_small || std::ranges::none_of(constraints.schedules, has_closed_form)) return start;
  return detail::LeastStaging(objective, detail::kLeastMemorySteps).best(std::move(start));
}

}  // namespace autopar
