#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/plan/concepts.hpp>
#include <autopar/plan/model/workload.hpp>
#include <autopar/plan/request.hpp>

namespace autopar::testing {

/// The reference policy: tries every staging with one stage for each rank, and each tensor degree of each stage. For
/// tiny graphs only, since the number of stagings grows with stages ^ nodes.
struct BruteForce {
  using policy_category = staging_policy_tag;
  std::int64_t max_stagings = 10'000'000;

  /// @throws InvalidArgument if there are more than `max_stagings` stagings
  [[nodiscard]] SearchResult search(const StepObjective& objective) const {
    SearchResult result{Candidates(objective.constraints().memory)};
    const int most =
        std::min<int>(objective.constraints().world, static_cast<int>(objective.work().graph.node_count()));
    for (int stages = 1; stages <= most; ++stages) {
      Staging staging;
      staging.stage_of.assign(objective.work().graph.node_count(), 0);
      staging.replicas.assign(static_cast<std::size_t>(stages), 1);
      if (objective.constraints().tensor_degrees.size() > 1) staging.tensor = staging.replicas;
      do {
        if (is_pipeline(objective.work(), staging)) try_all_replicas(objective, staging, 0, result);
      } while (next(staging.stage_of, stages));
    }
    result.proven = true;
    result.lower_bound = result.candidates.best_step();
    return result;
  }

 private:
  /// Counts up in base `stages`.
  /// @return false after the last assignment
  static bool next(std::vector<int>& stage_of, int stages) {
    for (int& stage : stage_of) {
      if (++stage < stages) return true;
      stage = 0;
    }
    return false;
  }

  static bool is_pipeline(const Workload& work, const Staging& staging) {
    for (const EdgeId edge : work.graph.edges()) {
      if (staging.stage_of[work.graph.source(edge).index()] > staging.stage_of[work.graph.target(edge).index()])
        return false;
    }
    for (int stage = 0; stage < staging.stages(); ++stage) {
      if (std::find(staging.stage_of.begin(), staging.stage_of.end(), stage) == staging.stage_of.end()) return false;
    }
    return true;
  }

  void try_all_replicas(const StepObjective& objective, Staging& staging, std::size_t stage,
                        SearchResult& result) const {
    if (stage < staging.replicas.size()) {
      const auto& degrees = objective.constraints().tensor_degrees;
      for (const int degree : degrees) {
        if (degrees.size() > 1) staging.tensor[stage] = degree;
        for (int replicas = 1; replicas <= objective.constraints().world; ++replicas) {
          staging.replicas[stage] = replicas;
          if (staging.ranks() <= objective.constraints().world) try_all_replicas(objective, staging, stage + 1, result);
        }
        staging.replicas[stage] = 1;
      }
      if (degrees.size() > 1) staging.tensor[stage] = 1;
      return;
    }
    for (const int microbatches : objective.constraints().microbatches) {
      for (const ScheduleKind schedule : objective.constraints().schedules) {
        staging.microbatches = microbatches;
        staging.schedule = schedule;
        if (!meets(objective.constraints(), objective.work(), staging)) continue;
        if (++result.states > max_stagings) {
          throw InvalidArgument("BruteForce: more than " + std::to_string(max_stagings) +
                                " stagings; use ExactStaging");
        }
        Staging own = staging;
        if (std::ranges::all_of(own.tensor, [](int shards) { return shards == 1; })) own.tensor.clear();
        result.candidates.offer({own, objective(own)});
      }
    }
  }
};
static_assert(StagingPolicy<BruteForce>);

/// An upper bound on the number of stagings that brute force tries: chains of downsets, replicas, micro-batches and
/// schedules. Counted for any number of replicas; fixed numbers reduce it.
/// @pre at most 16 nodes
inline double count_stagings(const Workload& work, const Constraints& constraints) {
  const auto n = static_cast<unsigned>(work.graph.node_count());
  std::vector<unsigned> before(n, 0);
  for (const EdgeId edge : work.graph.edges())
    before[work.graph.target(edge).index()] |= 1u << work.graph.source(edge).index();
  std::vector<unsigned> downsets;
  for (unsigned set = 0; set < 1u << n; ++set) {
    bool closed = true;
    for (unsigned i = 0; i < n; ++i) closed = closed && ((set >> i & 1u) == 0 || (before[i] & ~set) == 0);
    if (closed) downsets.push_back(set);
  }
  double all = 0, choices = 1;  // choices: of positive replicas whose sum is at most the world
  std::vector<double> chains(downsets.size(), 0);
  chains.front() = 1;
  const int most = std::min(constraints.world, static_cast<int>(n));
  for (int stages = 1; stages <= most; ++stages) {
    choices = choices * (constraints.world - stages + 1) / stages;
    for (std::size_t to = downsets.size(); to-- > 0;) {
      double sum = 0;
      for (std::size_t from = 0; from < to; ++from) sum += (downsets[from] & ~downsets[to]) == 0 ? chains[from] : 0;
      chains[to] = sum;
    }
    if (constraints.stages == 0 || constraints.stages == stages) all += chains.back() * choices;
  }
  return all * static_cast<double>(constraints.microbatches.size() * constraints.schedules.size());
}

}  // namespace autopar::testing
