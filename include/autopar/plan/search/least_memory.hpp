#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <autopar/graph/algorithms/downsets.hpp>
#include <autopar/plan/search/least_cuts.hpp>
#include <autopar/plan/search/limited_stagings.hpp>
#include <autopar/plan/search/stage_floor.hpp>
#include <autopar/plan/step/stage_table.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar {

namespace detail {

/// Finds the staging with the least memory: searches all variants under ever lower limits, until nothing is left below.
class LeastStaging {
 public:
  /// @param degrees  of tensor shards that each stage may have
  LeastStaging(const StepObjective& objective, std::int64_t budget, const std::vector<int>& degrees = {1})
      : objective_(objective), whole_(budget), budget_(budget) {
    const Constraints& all = objective.constraints();
    for (const int degree : degrees)
      degrees_.emplace_back(objective, degree, degree == 1 ? all : all.at_degree(degree));
  }

  /// @param start  any staging, or nothing
  /// @param asked  bytes that are available: any staging that needs no more is an answer; if all need more, the answer
  /// need not be the least. That is proven much sooner
  [[nodiscard]] std::optional<LeastMemory> best(std::optional<LeastMemory> start, std::optional<Bytes> asked = {}) {
    const Constraints& constraints = objective_.constraints();
    const Bytes any(std::numeric_limits<std::int64_t>::max() / 4);
    const Bytes host = constraints.host_memory.value_or(any);
    const auto lower = [&](const LeastMemory& found) {
      return LimitedStagings::Limits{std::min(found.peak - Bytes(1), asked.value_or(any)), host};
    };
    const bool holds = start && start->host_holds(constraints);
    if (asked && holds && start->peak <= *asked) return start;
    std::optional<LeastMemory> least = holds ? start : std::nullopt;
    descend(least, least ? lower(*least) : LimitedStagings::Limits{asked.value_or(any), host}, lower);
    if (!least && !asked && budget_ > 0) {
      // The hosts hold none of them: look for the one that they hold most nearly.
      least = std::move(start);
      const auto nearer = [&](const LeastMemory& found) { return LimitedStagings::Limits{any, found.host - Bytes(1)}; };
      descend(least, least ? nearer(*least) : LimitedStagings::Limits{any, any}, nearer);
    } else if (!least) {
      least = std::move(start);
    }
    if (least) least->proven = budget_ > 0;
    if (least) least->steps = whole_ - budget_;
    return least;
  }

 private:
  template <class Lower>
  void descend(std::optional<LeastMemory>& least, LimitedStagings::Limits limits, const Lower& lower) {
    for (const MemoryVariant& variant : variants()) {
      while (budget_ > 0) {
        auto found = LimitedStagings(objective_, degrees_under(variant), variant, limits, budget_).any();
        if (!found) break;
        limits = lower(*found);
        least = std::move(found);
      }
    }
  }

  /// Of the schedules with a law, the one that holds one micro-batch for each stage from this to the last holds least.
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

  /// A tensor degree that stages may have, with a table for each ZeRO level and place of the optimizer.
  struct Degree {
    Degree(const StepObjective& whole, int ranks, Constraints own)
        : degree(ranks), constraints(std::move(own)), objective(whole.under(constraints)), floor(objective) {}
    Degree(const Degree&) = delete;  // its members refer to one another
    Degree& operator=(const Degree&) = delete;

    int degree;
    Constraints constraints;
    StepObjective objective;
    StageFloor floor;
    std::map<std::pair<int, Offload>, TableUnder> tables{};
  };
  [[nodiscard]] std::vector<DegreeOfStages> degrees_under(const MemoryVariant& variant) {
    std::vector<DegreeOfStages> out;
    for (Degree& each : degrees_) {
      Constraints own = each.constraints;
      own.zero_levels = {variant.zero};
      own.offloads = {variant.offload};
      TableUnder& under = each.tables
                              .try_emplace({variant.zero, variant.offload}, objective_, std::move(own),
                                           std::numeric_limits<std::int32_t>::max())
                              .first->second;
      out.push_back({each.degree, under.objective, *under.table, each.floor});
    }
    return out;
  }

  const StepObjective& objective_;
  std::deque<Degree> degrees_;
  std::int64_t whole_, budget_;
};

/// Whether stagings are few enough for a proof, and have schedules with closed forms.
[[nodiscard]] inline bool least_memory_is_provable(const StepObjective& objective) {
  const Constraints& constraints = objective.constraints();
  return objective.work().graph.node_count() <= kMaskNodes && constraints.world <= constraints.budget.memory_ranks &&
         count_downsets(objective.work().graph, constraints.budget.downsets).has_value() &&
         std::ranges::any_of(constraints.schedules, has_closed_form);
}

}  // namespace detail

/// The staging with one stage a rank that needs the least memory. If there are few enough, all convex cuts, replicas,
/// micro-batches and memory optimizations are searched, and the result is proven. Otherwise one topological order is
/// cut, on more than eight ranks with a few choices of replicas. Nothing if the constraints leave no such staging.
/// @param asked  as in `LeastStaging::best`
[[nodiscard]] inline std::optional<LeastMemory> least_memory(const StepObjective& objective,
                                                             std::optional<Bytes> asked = {}) {
  auto start = detail::LeastMemoryCuts(objective).best();
  if (!detail::least_memory_is_provable(objective)) return start;
  return detail::LeastStaging(objective, objective.constraints().budget.memory_steps).best(std::move(start), asked);
}

}  // namespace autopar
