#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <autopar/plan/concepts.hpp>
#include <autopar/plan/search/linear_cuts.hpp>
#include <autopar/plan/search/refine.hpp>

namespace autopar::detail {

/// Stagings from which a search starts: the most promising ones, improved and simulated.
class Starts {
 public:
  /// @param result  of the search @pre both outlive it
  Starts(const StepObjective& objective, SearchResult& result)
      : objective_(objective),
        constraints_(objective.constraints()),
        budget_(constraints_.budget),
        local_(objective),
        result_(result) {}

  /// Adds the best even staging for each number of stages.
  void add_even() {
    const LinearCuts cuts(objective_);
    for (const int stages : stage_counts(objective_)) {
      const auto replicas = even_replicas(constraints_, stages);
      std::optional<Start> best;
      for (const int microbatches : constraints_.microbatches) {
        for (const ScheduleKind schedule : constraints_.schedules) {
          auto cut = cuts.cut(replicas, microbatches, schedule);
          if (!cut) continue;
          auto start = estimated(std::move(cut->staging));
          if (start && (!best || start->estimate < best->estimate)) best = std::move(start);
        }
      }
      if (best) starts_.push_back(std::move(*best));
    }
  }
  /// Adds a staging that meets the constraints.
  void add(Staging staging) {
    if (auto start = estimated(std::move(staging))) starts_.push_back(std::move(*start));
  }

  /// Offers the most promising stagings, improved, and the one with a single stage, with which everybody compares.
  void offer() && {
    std::ranges::stable_sort(starts_, {}, &Start::estimate);
    std::vector<Staging> stagings;
    std::int64_t left = budget_.estimate_steps;
    for (std::size_t i = 0; i < starts_.size(); ++i) {
      Staging& start = starts_[i].staging;
      if (static_cast<int>(i) >= budget_.starts && start.stages() > 1) continue;
      add_new(stagings, start);
      const std::int64_t each = steps_of_estimate(start);
      const auto most = static_cast<int>(std::min<std::int64_t>(budget_.estimates, left / each));
      if (most <= 0) continue;
      left -= most * each;
      add_new(stagings, local_.improve(std::move(start), most).first);
    }
    simulate(stagings);
  }

 private:
  struct Start {
    double estimate;
    Staging staging;
  };

  [[nodiscard]] std::optional<Start> estimated(Staging staging) {
    if (!meets(constraints_, objective_.work(), staging)) return std::nullopt;
    ++result_.states;
    const double estimate = local_.estimate(staging);
    return Start{estimate, std::move(staging)};
  }

  static void add_new(std::vector<Staging>& stagings, Staging staging) {
    if (std::ranges::find(stagings, staging) == stagings.end()) stagings.push_back(std::move(staging));
  }

  [[nodiscard]] std::int64_t steps_of_estimate(const Staging& staging) const {
    const std::int64_t stages = staging.stages();
    return static_cast<std::int64_t>(objective_.work().graph.node_count()) + stages * stages +
           2 * stages * staging.microbatches + std::int64_t{4} * staging.ranks();
  }

  /// Simulates all of them, except those with many actions. These are compared with one rank for each stage's replicas.
  /// The best are simulated until some take as long as the comparison said. The others are slower, and are known
  /// closely enough.
  void simulate(const std::vector<Staging>& stagings) {
    std::vector<Candidate> many;
    std::int64_t left = budget_.compared_steps;
    for (const Staging& staging : stagings) {
      if (objective_.actions(staging) <= budget_.many_actions) {
        result_.candidates.offer({staging, objective_(staging)});
      } else if (left > 0 || staging.stages() == 1) {
        left -= objective_.comparison(staging);
        many.push_back({staging, objective_.folded(staging)});
      }
    }
    Candidates::rank(many, constraints_.memory);
    int simulated = 0, as_compared = 0;
    for (Candidate& candidate : many) {
      const bool faster = objective_.fits(candidate.terms) && candidate.terms.step < result_.candidates.best_step();
      if (faster && (simulated == budget_.simulated || as_compared >= budget_.as_compared)) continue;
      if (faster) {
        const Seconds compared = candidate.terms.step;
        candidate.terms = objective_.simulated(candidate.staging, std::move(candidate.terms));
        ++simulated;
        as_compared += candidate.terms.step <= compared * (1 + StepObjective::kFoldedClose) ? 1 : 0;
      }
      result_.candidates.offer(std::move(candidate));
    }
  }

  const StepObjective& objective_;
  const Constraints& constraints_;
  const SearchBudget& budget_;
  LocalSearch local_;
  SearchResult& result_;
  std::vector<Start> starts_;
};

}  // namespace autopar::detail
