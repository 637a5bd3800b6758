#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <autopar/plan/concepts.hpp>
#include <autopar/plan/search/linear_cuts.hpp>
#include <autopar/plan/step/objective.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar {

/// A staging that needs little memory, and how much its worst rank needs.
struct LeastMemory {
  [[nodiscard]] bool host_holds(const Constraints& constraints) const {
    return !constraints.host_memory || host <= *constraints.host_memory;
  }
  /// Whether it is within the limits of these constraints.
  [[nodiscard]] bool fits(const Constraints& constraints) const {
    return peak <= constraints.memory && host_holds(constraints);
  }

  /// @param memory  of each stage, each on its own ranks
  [[nodiscard]] static LeastMemory of(Staging staging, const std::vector<StageMemory>& memory) {
    LeastMemory out{std::move(staging), {}, StageId(0)};
    for (std::size_t s = 0; s < memory.size(); ++s) {
      out.host = std::max(out.host, memory[s].host);
      if (memory[s].total() <= out.peak) continue;
      out.peak = memory[s].total();
      out.stage = StageId::of(s);
    }
    return out;
  }

  Staging staging;
  Bytes peak{};
  StageId stage;           ///< the stage that needs most
  Bytes host{};            ///< bytes that a rank needs of its host's memory
  std::int64_t steps = 0;  ///< number of steps that the proof took
  bool proven = false;     ///< no staging with one stage a rank needs less, under any schedule that is allowed
};

namespace detail {

/// Cuts a topological order into stages such that the largest stage memory is about smallest.
class LeastMemoryCuts {
 public:
  explicit LeastMemoryCuts(const StepObjective& objective) : objective_(objective), cuts_(objective) {}

  [[nodiscard]] std::optional<LeastMemory> best() {
    const Constraints& constraints = objective_.constraints();
    std::optional<LeastMemory> least;
    for (const int stages : stage_counts(objective_)) {
      for (const auto& replicas : replica_choices(stages)) {
        for (const int microbatches : microbatch_choices()) {
          auto cut = cuts_.cut(replicas, microbatches, least_in_flight(), CutGoal::kMemory);
          const bool holds = least && least->host_holds(constraints);
          if (!cut || (holds && cut->bottleneck >= static_cast<double>(least->peak.value()))) continue;
          if (!meets(constraints, objective_.work(), cut->staging)) continue;
          const LeastMemory found = measured(std::move(cut->staging));
          const bool improves = found.host_holds(constraints) == holds ? !least || found.peak < least->peak : !holds;
          if (improves) least = found;
        }
      }
    }
    return least;
  }

 private:
  /// The schedule that holds the fewest micro-batches: one for each stage from this to the last is never more than all.
  [[nodiscard]] ScheduleKind least_in_flight() const {
    const auto& allowed = objective_.constraints().schedules;
    const auto least = std::ranges::find(allowed, InFlightLaw::kStagesBehind,
                                         [](ScheduleKind kind) { return traits_of(kind).in_flight; });
    if (least != allowed.end()) return *least;
    const auto lawful = std::find_if(allowed.begin(), allowed.end(), has_closed_form);
    return lawful != allowed.end() ? *lawful : allowed.front();
  }

  /// Replicas divide activations, so every rank is used: on a few ranks in every way, on many in the likely ways.
  /// Operators that mix samples need single replicas.
  [[nodiscard]] std::vector<std::vector<int>> replica_choices(int stages) const {
    const Constraints& constraints = objective_.constraints();
    if (constraints.replicas_are_fixed()) return {constraints.fixed_replicas(stages)};
    std::vector<std::vector<int>> choices;
    std::vector<int> chosen;
    if (constraints.world <= constraints.budget.listed_ranks) {
      add_all(choices, chosen, stages, constraints.world);
    } else {
      choices.push_back(even_replicas(constraints, stages));
      choices.emplace_back(choices.front().rbegin(), choices.front().rend());
      choices.emplace_back(static_cast<std::size_t>(stages), 1);
      choices.back().front() += constraints.world - stages;  // the first stages hold the most micro-batches
    }
    choices.emplace_back(static_cast<std::size_t>(stages), 1);
    return choices;
  }

  static void add_all(std::vector<std::vector<int>>& choices, std::vector<int>& chosen, int stages, int ranks) {
    if (stages == 1) {
      choices.push_back(chosen);
      choices.back().push_back(ranks);
      return;
    }
    for (int replicas = 1; replicas <= ranks - stages + 1; ++replicas) {
      chosen.push_back(replicas);
      add_all(choices, chosen, stages - 1, ranks - replicas);
      chosen.pop_back();
    }
  }

  /// More micro-batches make slices smaller; with few, fixed bytes are held less often.
  [[nodiscard]] std::vector<int> microbatch_choices() const {
    const auto& allowed = objective_.constraints().microbatches;
    if (objective_.constraints().world <= objective_.constraints().budget.listed_ranks) return allowed;
    return {allowed.front(), allowed.back()};
  }

  [[nodiscard]] LeastMemory measured(Staging staging) const {
    const auto memory = objective_.least_memory(staging);
    return LeastMemory::of(std::move(staging), memory);
  }

  const StepObjective& objective_;
  LinearCuts cuts_;
};

}  // namespace detail

}  // namespace autopar
