#pragma once

#include <autopar/graph/algorithms/topological_order.hpp>
#include <autopar/plan/concepts.hpp>

/// A user's policy: the first half of a topological order on one rank, the second half on the next, whatever it costs;
/// nothing where the user asks for something else.
struct HalvesStaging {
  using policy_category = autopar::staging_policy_tag;

  int microbatches = 2;

  [[nodiscard]] autopar::SearchResult search(const autopar::StepObjective& objective) const {
    const auto order = autopar::topological_order(objective.work().graph);
    autopar::Staging staging{std::vector<int>(order.size()), {1, 1}, microbatches, autopar::ScheduleKind::kGPipe};
    for (std::size_t i = order.size() / 2; i < order.size(); ++i) staging.stage_of[order[i].index()] = 1;

    autopar::SearchResult result{autopar::Candidates(objective.constraints().memory)};
    if (order.size() < 2 || !autopar::meets(objective.constraints(), objective.work(), staging)) return result;
    result.states = 1;
    result.candidates.offer({staging, objective(staging)});
    return result;
  }
};
static_assert(autopar::StagingPolicy<HalvesStaging>);
