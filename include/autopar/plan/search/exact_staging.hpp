#pragma once

#include <algorithm>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <autopar/plan/concepts.hpp>
#include <autopar/plan/search/branch_and_bound.hpp>
#include <autopar/plan/search/chunked_staging.hpp>
#include <autopar/plan/search/least_memory.hpp>
#include <autopar/plan/search/starts.hpp>

namespace autopar {

/// The fastest staging: stages, replicas, micro-batches and schedules over convex cuts, by branch and bound on the
/// simulated step. It starts from even stagings and local search. The result is proven to be the fastest unless the
/// budget ends first; then `lower_bound` says how much faster a staging could be.
/// @cost at most `SearchBudget::states` states of some tenths of a microsecond each
struct ExactStaging {
  using policy_category = staging_policy_tag;

  /// Workloads of more than 64 nodes are not searched, only starts are tried: use a coarsening policy. Schedules that
  /// are not plain are searched by ChunkedStaging afterwards; then nothing is proven.
  [[nodiscard]] SearchResult search(const StepObjective& objective) const {
    return detail::search_all_schedules(objective, [&](const StepObjective& plain) { return search_plain(plain); });
  }

  /// Likewise, with a separate tensor degree for each stage, after each degree was searched for all stages.
  /// @param result  of those searches; is proven if this search is completed, too
  void search_mixed(const StepObjective& objective, SearchResult& result) const {
    const Constraints plain = detail::plain_part(objective.constraints());
    const bool all_plain = plain.schedules.size() == objective.constraints().schedules.size();
    result.plain_proven = search_mixed_plain(objective.under(plain), result);
    result.proven = result.plain_proven && all_plain;
    result.lower_bound = result.proven ? result.candidates.best_step() : Seconds{};
  }

  /// Something that fits, if `search` finds something. For requests where it is proven that no staging with one stage a
  /// rank fits.
  [[nodiscard]] SearchResult search_beyond_plain(const StepObjective& objective) const {
    const auto nothing = [](const StepObjective& plain) {
      return SearchResult{Candidates(plain.constraints().memory)};
    };
    return detail::search_all_schedules(objective, nothing, {.only_fits = true});
  }

 private:
  /// @return whether the search was completed
  [[nodiscard]] bool search_mixed_plain(const StepObjective& objective, SearchResult& result) const {
    const Constraints& constraints = objective.constraints();
    if (constraints.schedules.empty() || objective.work().graph.node_count() > detail::kMaskNodes) return false;
    std::deque<detail::TableUnder> degrees;
    std::vector<const StepObjective*> objectives;
    std::vector<detail::StageDegree> choices;
    for (const int degree : constraints.tensor_degrees) {
      auto& under = degrees.emplace_back(objective, constraints.at_degree(degree), constraints.budget.downsets);
      if (!under.table) return false;
      objectives.push_back(&under.objective);
      choices.push_back({degree, &*under.table});
    }
    auto table = detail::StageTable::make(objective, constraints.budget.downsets, objectives);
    const std::int64_t last = result.states + most_states(objective) / constraints.budget.part_of_degrees;
    bool ended = true;
    for (const Configuration& one : differing(objective)) {
      const std::int64_t budget = std::max<std::int64_t>(0, last - result.states);
      detail::BranchAndBound search(objective, *table, nullptr, one.microbatches, one.schedule, result, budget,
                                    choices);
      ended = search.run() && ended;
    }
    return ended;
  }

  [[nodiscard]] SearchResult search_plain(const StepObjective& objective) const {
    const Constraints& constraints = objective.constraints();
    SearchResult result{Candidates(constraints.memory)};
    std::optional<detail::StageTable> table;
    if (objective.work().graph.node_count() <= detail::kMaskNodes)
      table = detail::StageTable::make(objective, constraints.budget.downsets);
    std::vector<Configuration> configurations;
    if (table) configurations = all_configurations(objective, *table, result);
    detail::Starts starts(objective, result);
    starts.add_even();
    for (const Configuration& one : configurations) {
      for (int ranks = 1; one.rest && ranks <= constraints.world; ++ranks) {
        if (auto staging = one.rest->staging(ranks)) starts.add(std::move(*staging));
      }
    }
    std::move(starts).offer();
    if (!table) return result;
    if (!result.candidates.any_fits()) {
      const auto least = least_memory(objective);
      if (least) result.least = std::make_shared<LeastMemory>(*least);
      const bool fits = least && least->fits(constraints);
      if (fits && meets(constraints, objective.work(), least->staging)) {
        result.candidates.offer({least->staging, objective(least->staging)});
      } else if (least && least->proven && !fits) {
        result.proven = true;
        result.lower_bound = result.candidates.best_step();
        return result;
      }
    }
    branch(objective, *table, configurations, result);
    return result;
  }

  /// One number of micro-batches and one schedule.
  struct Configuration {
    int microbatches;
    ScheduleKind schedule;
    std::shared_ptr<detail::RestBottleneck> rest{};  // no optional: g++ 12 warns about it in sorting, without cause
    double bound = 0;
  };

  /// All configurations that differ: with nothing to interleave, all plain schedules have the same orders.
  [[nodiscard]] static std::vector<Configuration> differing(const StepObjective& objective) {
    std::vector<Configuration> all;
    for (const int microbatches : objective.constraints().microbatches) {
      const bool alike = microbatches == 1 || !objective.work().loss_mode;
      for (const ScheduleKind schedule : objective.constraints().schedules) {
        if (!alike || schedule == objective.constraints().schedules.front()) all.push_back({microbatches, schedule});
      }
    }
    return all;
  }

  /// All configurations, the one with the smallest bound first.
  [[nodiscard]] static std::vector<Configuration> all_configurations(const StepObjective& objective,
                                                                     detail::StageTable& table, SearchResult& result) {
    std::vector<Configuration> all = differing(objective);
    const auto share = states_of_search(objective) / objective.constraints().budget.part_of_rest /
                       static_cast<std::int64_t>(all.size()) * detail::kTableStepsAState;
    for (Configuration& one : all) {
      auto rest = detail::RestBottleneck::make(table, objective, one.microbatches, one.schedule, share);
      if (rest) one.rest = std::make_shared<detail::RestBottleneck>(std::move(*rest));
      if (one.rest) result.states += one.rest->work() / detail::kTableStepsAState;
      one.bound = detail::BranchAndBound(objective, table, one.rest.get(), one.microbatches, one.schedule, result, 0)
                      .root_bound();
    }
    std::ranges::stable_sort(all, {}, &Configuration::bound);
    return all;
  }

  [[nodiscard]] static std::int64_t states_of_search(const StepObjective& objective) {
    const auto& [searches, budget] = std::tie(objective.constraints().searches, objective.constraints().budget);
    return searches == 1 ? budget.states : budget.states / budget.part_of_degrees / searches;
  }

  /// With more ranks less of everything can be searched, and a state takes longer.
  [[nodiscard]] static std::int64_t most_states(const StepObjective& objective) {
    return states_of_search(objective) /
           std::max(1, objective.constraints().ranks() / objective.constraints().budget.full_ranks);
  }

  static void branch(const StepObjective& objective, detail::StageTable& table,
                     const std::vector<Configuration>& configurations, SearchResult& result) {
    std::vector<const Configuration*> open;
    for (const Configuration& one : configurations) open.push_back(&one);
    // What a configuration leaves of its share, and better plans found meanwhile, help configurations that were cut
    // short.
    for (bool again = true; again && !open.empty();) {
      std::vector<const Configuration*> unfinished;
      const std::int64_t before = result.states;
      for (std::size_t i = 0; i < open.size(); ++i) {
        const auto& [microbatches, schedule, rest, bound] = *open[i];
        const auto share = std::max<std::int64_t>(0, most_states(objective) - result.states) /
                           static_cast<std::int64_t>(open.size() - i);
        detail::BranchAndBound search(objective, table, rest.get(), microbatches, schedule, result, share);
        if (!search.run()) unfinished.push_back(open[i]);
      }
      again = result.states < most_states(objective) && result.states > before;
      open = std::move(unfinished);
    }
    result.proven = open.empty();
    double left = std::numeric_limits<double>::infinity();
    for (const Configuration* one : open) left = std::min(left, one->bound);
    result.lower_bound = std::min({result.candidates.best_step(), objective.constraints().to_beat, Seconds(left)});
  }
};
static_assert(StagingPolicy<ExactStaging>);

}  // namespace autopar
