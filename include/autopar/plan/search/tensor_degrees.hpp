#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <autopar/graph/algorithms/topological_order.hpp>
#include <autopar/plan/concepts.hpp>
#include <autopar/plan/search/least_memory.hpp>
#include <autopar/plan/step/timeline.hpp>
#include <autopar/schedule/program.hpp>
#include <autopar/schedule/schedule.hpp>
#include <autopar/schedule/traits.hpp>
#include <autopar/schedule/validate.hpp>

namespace autopar::detail {

/// A staging of groups of ranks as a staging of ranks.
[[nodiscard]] inline Staging at_degree(Staging staging, int degree) {
  if (degree > 1) staging.tensor.assign(staging.replicas.size(), degree);
  return staging;
}

/// The staging that needs the least memory over all tensor degrees of its stages. Its memory is predicted as its stages
/// run it. What is known of a degree before there are stages is only a lower bound, and no answer.
/// @param mixes  whether stages may have different degrees
/// @param asked  as in `LeastStaging::best`
[[nodiscard]] inline std::optional<LeastMemory> least_memory_of_degrees(const StepObjective& objective, bool mixes,
                                                                        std::optional<Bytes> asked = {}) {
  const auto& degrees = objective.constraints().tensor_degrees;
  if (degrees == std::vector{1}) return least_memory(objective, asked);
  std::optional<LeastMemory> least;
  for (const int degree : degrees) {
    const Constraints constraints = objective.constraints().at_degree(degree);
    const auto cut = LeastMemoryCuts(objective.under(constraints)).best();
    if (!cut) continue;
    Staging staging = at_degree(cut->staging, degree);
    if (!meets(objective.constraints(), objective.whole(), staging)) continue;
    const auto memory = objective.least_memory(staging);
    auto own = LeastMemory::of(std::move(staging), memory);
    if (!least || own.peak < least->peak) least = std::move(own);
  }
  if (!least_memory_is_provable(objective)) return least;
  if (mixes)
    return LeastStaging(objective, objective.constraints().budget.memory_steps, degrees).best(std::move(least), asked);
  bool proven = true;
  std::int64_t steps = 0;
  for (const int degree : degrees) {
    least =
        LeastStaging(objective, objective.constraints().budget.memory_steps, {degree}).best(std::move(least), asked);
    if (!least) continue;
    proven = proven && least->proven;
    steps += least->steps;
  }
  if (least) least->proven = proven;
  if (least) least->steps = steps;
  return least;
}

/// The result of a search for each allowed tensor degree, which all stages of a staging have.
/// @param search  takes a StepObjective; treats groups of ranks as ranks
template <class Search>
[[nodiscard]] SearchResult search_degrees(const StepObjective& objective, const Search& search) {
  const auto& degrees = objective.constraints().tensor_degrees;
  if (degrees == std::vector{1}) return search(objective);
  SearchResult all{Candidates(objective.constraints().memory)};
  all.proven = all.plain_proven = true;
  for (const int degree : degrees) {
    Constraints constraints = objective.constraints().at_degree(degree);
    constraints.to_beat = std::min(constraints.to_beat, all.candidates.best_step());
    const SearchResult own = search(objective.under(constraints));
    for (Candidate& candidate : own.candidates.ranked())
      all.candidates.offer({at_degree(std::move(candidate.staging), degree), std::move(candidate.terms)});
    all.proven = all.proven && own.proven;
    all.plain_proven = all.plain_proven && (own.proven || own.plain_proven);
    all.lower_bound = degree == degrees.front() ? own.lower_bound : std::min(all.lower_bound, own.lower_bound);
    all.states += own.states;
  }
  return all;
}

/// Changes the tensor degrees of single stages of the best stagings, one at a time, as long as the step gets shorter.
/// @cost no more actions than `SearchBudget::degree_actions`
inline void vary_degrees(const StepObjective& objective, SearchResult& result) {
  const Constraints& constraints = objective.constraints();
  std::int64_t left = constraints.budget.degree_actions;
  std::vector<Candidate> starts = result.candidates.ranked();
  if (starts.size() > constraints.budget.varied_stagings) starts.resize(constraints.budget.varied_stagings);
  for (Candidate& start : starts) {
    if (!start.staging.position_of.empty() || traits_of(start.staging.schedule).orders_in_plan) continue;
    for (std::size_t s = 0; s < start.staging.replicas.size(); ++s) {
      const int stage = static_cast<int>(s), ranks = start.staging.replicas[s] * start.staging.tensor_of(stage);
      for (const int degree : constraints.tensor_degrees) {
        Staging next = start.staging;
        if (degree == next.tensor_of(stage) || ranks % degree != 0) continue;
        next.tensor.resize(next.replicas.size(), 1);
        next.tensor[s] = degree;
        next.replicas[s] = ranks / degree;
        if (std::ranges::all_of(next.tensor, [](int shards) { return shards == 1; })) next.tensor.clear();
        if (!meets(constraints, objective.whole(), next)) continue;
        if ((left -= objective.actions(next)) < 0) return;
        Candidate candidate{next, objective(next)};
        ++result.states;
        result.candidates.offer(candidate);
        if (objective.fits(candidate.terms) && candidate.terms.step < start.terms.step) start = std::move(candidate);
      }
    }
  }
}

/// Two stages on all ranks, one after the other, each in its own shape. Examples are replicas up to a class head that
/// all ranks compute together, or from an embedding on. The second stage begins, or the first ends, with a region. One
/// position has no bubble to fill, so the first number of micro-batches that fits is used.
/// @cost no more actions than `SearchBudget::degree_actions`
class SharedRanks {
 public:
  /// @param only_fits  whether only stagings that fit matter
  SharedRanks(const StepObjective& objective, SearchResult& result, bool only_fits = false)
      : objective_(objective), constraints_(objective.constraints()), result_(result), only_fits_(only_fits) {}

  void offer() {
    const auto kind = std::ranges::find_if(constraints_.schedules, [](ScheduleKind schedule) {
      return traits_of(schedule).layout == StageLayout::kLooped;
    });
    const bool fixed = constraints_.stages > 1 || constraints_.replicas_are_fixed();
    if (kind == constraints_.schedules.end() || fixed) return;
    for (const std::vector<int>& stage_of : halves()) {
      for (const int first : constraints_.tensor_degrees) {
        for (const int second : constraints_.tensor_degrees) {
          if (first == second) continue;
          for (const int microbatches : constraints_.microbatches) {
            const std::vector<int> replicas{constraints_.world / first, constraints_.world / second};
            if (try_staging({stage_of, replicas, microbatches, *kind, {0, 0}, {first, second}})) break;
          }
        }
      }
    }
  }

 private:
  /// Cuts into two stages: the second is a region and all nodes behind it, or the first is a region and all nodes
  /// before it. No stage is empty; small regions' cuts come first.
  [[nodiscard]] std::vector<std::vector<int>> halves() const {
    const auto& graph = objective_.whole().graph;
    const auto order = topological_order(graph);
    std::vector<std::pair<std::ptrdiff_t, std::vector<int>>> found;
    for (const TensorRegion& region : objective_.whole().regions) {
      if (region.follows >= 0 || std::ranges::none_of(constraints_.tensor_degrees, [&](int degree) {
            return degree > 1 && region.admits(degree);
          })) {
        continue;
      }
      std::vector<int> tail(graph.node_count(), 0), head(graph.node_count(), 1);
      for (const NodeId node : region.atoms) tail[node.index()] = 1, head[node.index()] = 0;
      for (const NodeId node : order) {
        for (const NodeId next : graph.successors(node)) tail[next.index()] |= tail[node.index()];
      }
      for (std::size_t i = order.size(); i-- > 0;) {
        for (const NodeId before : graph.predecessors(order[i])) head[before.index()] &= head[order[i].index()];
      }
      found.emplace_back(std::ranges::count(tail, 1), std::move(tail));
      found.emplace_back(std::ranges::count(head, 0), std::move(head));
    }
    std::erase_if(found,
                  [&](const auto& half) { return half.first == static_cast<std::ptrdiff_t>(graph.node_count()); });
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    std::vector<std::vector<int>> out;
    for (auto& [count, stage_of] : found) {
      if (out.size() < constraints_.budget.halves) out.push_back(std::move(stage_of));
    }
    return out;
  }

  /// @return whether it fits
  bool try_staging(const Staging& staging) {
    if (!meets(constraints_, objective_.whole(), staging)) return false;
    left_ -= objective_.actions(staging);
    if (left_ < 0) return false;
    if (only_fits_ && !objective_.may_fit(staging)) return false;
    ++result_.states;
    const BatchLayout layout{constraints_.local_batches(), staging.microbatches};
    const Pipeline pipeline = objective_.pipeline(staging, place(staging, RankPlacement::kReplicasTogether)).pipeline;
    for (const Phase phase : phases(objective_.whole().loss_mode)) {
      const Program program = make_program(pipeline, layout, staging.schedule, phase);
      if (find_fault(pipeline, layout, phase, program)) return false;  // shards come to it in different orders
    }
    Candidate candidate{staging, objective_(staging)};
    const bool fits = objective_.fits(candidate.terms);
    result_.candidates.offer(std::move(candidate));
    return fits;
  }

  const StepObjective& objective_;
  const Constraints& constraints_;
  SearchResult& result_;
  bool only_fits_;
  std::int64_t left_ = constraints_.budget.degree_actions;
};

}  // namespace autopar::detail
