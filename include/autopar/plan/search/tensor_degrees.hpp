#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include <autopar/plan/concepts.hpp>
#include <autopar/plan/search/least_memory.hpp>

namespace autopar::detail {

/// A staging of groups of ranks as one of ranks.
[[nodiscard]] inline Staging at_degree(Staging staging, int degree) {
  if (degree > 1) staging.tensor.assign(staging.replicas.size(), degree);
  return staging;
}

/// The staging that needs least memory, whatever the tensor degree of all its stages.
[[nodiscard]] inline std::optional<LeastMemory> least_memory_of_degrees(const StepObjective& objective) {
  const auto& degrees = objective.constraints().tensor_degrees;
  if (degrees == std::vector{1}) return least_memory(objective);
  std::optional<LeastMemory> least;
  bool proven = true;
  std::int64_t steps = 0;
  for (const int degree : degrees) {
    const Constraints constraints = objective.constraints().at_degree(degree);
    auto own = least_memory(objective.under(constraints));
    if (!own) continue;
    proven = proven && own->proven;
    steps += own->steps;
    own->staging = at_degree(std::move(own->staging), degree);
    if (!meets(objective.constraints(), objective.whole(), own->staging)) continue;
    if (!least || own->peak < least->peak) least = std::move(own);
  }
  if (least) least->proven = proven;
  if (least) least->steps = steps;
  return least;
}

/// What a search finds for each of the tensor degrees that are allowed, all stages of a staging having the same.
/// @param search  of StepObjective; takes groups of ranks as ranks
template <class Search>
[[nodiscard]] SearchResult search_degrees(const StepObjective& objective, const Search& search) {
  const auto& degrees = objective.constraints().tensor_degrees;
  if (degrees == std::vector{1}) return search(objective);
  SearchResult all{Candidates(objective.constraints().memory)};
  all.proven = true;
  for (const int degree : degrees) {
    const Constraints constraints = objective.constraints().at_degree(degree);
    const SearchResult own = search(objective.under(constraints));
    for (Candidate& candidate : own.candidates.ranked())
      all.candidates.offer({at_degree(std::move(candidate.staging), degree), std::move(candidate.terms)});
    all.proven = all.proven && own.proven;
    all.lower_bound = degree == degrees.front() ? own.lower_bound : std::min(all.lower_bound, own.lower_bound);
    all.states += own.states;
  }
  return all;
}

}  // namespace autopar::detail
