#pragma once

#include <utility>
#include <vector>

#include <autopar/plan/concepts.hpp>
#include <autopar/plan/search/linear_cuts.hpp>

namespace autopar {

/// Equal stages: for each number of stages equal replicas, cut for the smallest bottleneck along one topological order.
/// What one would do by hand: a baseline, and a start for better searches.
struct UniformStaging {
  using policy_category = staging_policy_tag;

  [[nodiscard]] SearchResult search(const StepObjective& objective) const {
    const Constraints& constraints = objective.constraints();
    SearchResult result{Candidates(constraints.memory)};
    const detail::LinearCuts cuts(objective);
    for (const int stages : detail::stage_counts(objective)) {
      auto replicas = constraints.fixed_replicas(stages);
      if (replicas.empty()) replicas.assign(static_cast<std::size_t>(stages), constraints.world / stages);
      for (const int microbatches : constraints.microbatches) {
        for (const ScheduleKind schedule : constraints.schedules) {
          const auto cut = cuts.cut(replicas, microbatches, schedule);
          if (!cut || !meets(constraints, objective.work(), cut->staging)) continue;
          ++result.states;
          result.candidates.offer({cut->staging, objective(cut->staging)});
        }
      }
    }
    return result;
  }
};
static_assert(StagingPolicy<UniformStaging>);

}  // namespace autopar
