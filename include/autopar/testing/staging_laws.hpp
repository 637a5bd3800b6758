#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/cost/roofline.hpp>
#include <autopar/graph/algorithms/convexity.hpp>
#include <autopar/graph/node_set.hpp>
#include <autopar/plan/concepts.hpp>
#include <autopar/plan/model/constraints.hpp>
#include <autopar/plan/model/segments.hpp>
#include <autopar/plan/model/staging.hpp>
#include <autopar/plan/model/workload.hpp>
#include <autopar/testing/brute_force.hpp>
#include <autopar/testing/describe.hpp>
#include <autopar/testing/law_broken.hpp>
#include <autopar/testing/random_instances.hpp>

namespace autopar::testing {

struct StagingLawOptions {
  bool exact = false;            ///< every search must end with a proof and find what brute force finds
  std::uint64_t first_seed = 0;  ///< first of `inputs` consecutive seeds
  int inputs = 300;
  int max_nodes = 5;
  int max_devices = 4;
  SearchBudget budget{};  ///< of every search
};

/// What the inputs covered: if few pipelines fit, the laws say little about the policy.
struct StagingTally {
  int searched = 0;
  int fitting = 0;     ///< inputs for which the policy found a staging that fits
  int pipelined = 0;   ///< of these, inputs whose fastest staging has several stages
  int recomputed = 0;  ///< of these, it recomputes
  int sharded = 0;     ///< of these, it uses ZeRO
};

namespace detail {

/// A random objective and everything that it refers to.
class StagingProblem {
 public:
  /// @throws CaptureError if the options force a plan that mixes samples
  StagingProblem(std::uint64_t seed, const StagingLawOptions& options)
      : seed_(seed),
        instance_(within(random_instance(seed, options.max_nodes, options.max_devices), options.budget)),
        cost_(instance_.cluster),
        work_(make_workload(instance_.model, cost_)),
        constraints_(resolve(instance_.request, work_, instance_.cluster)),
        objective_(in_segments(), instance_.cluster, constraints_) {}
  StagingProblem(const StagingProblem&) = delete;  // the objective refers to the other members
  StagingProblem& operator=(const StagingProblem&) = delete;

  [[nodiscard]] const StepObjective& objective() const { return objective_; }

  /// @throws LawBroken also if the policy throws
  template <class P>
  [[nodiscard]] SearchResult search(const P& policy) const {
    try {
      return policy.search(objective_);
    } catch (const std::exception& error) {
      refuse("a search that finds nothing says so, and does not throw", error.what());
    }
  }

  void check(const Candidate& candidate) const {
    const Staging& staging = candidate.staging;
    const auto require = [&](bool holds, const char* law) {
      if (!holds) refuse(law, described(staging));
    };
    require(is_partition(staging), "the stages partition the nodes, and none is empty");
    for (const auto& nodes : nodes_by_stage(staging)) {
      NodeSet stage(work_.graph.node_count());
      for (const NodeId node : nodes) stage.insert(node);
      require(is_convex(work_.graph, stage), "every stage is convex");
    }
    for (const EdgeId edge : work_.graph.edges()) {
      require(staging.stage_of[work_.graph.source(edge).index()] <= staging.stage_of[work_.graph.target(edge).index()],
              "no value flows to an earlier stage");
    }
    require(meets(constraints_, work_, staging), "the constraints are met");
    const StepTerms terms = objective_(staging);
    require(terms.step == candidate.terms.step && StepObjective::peak(terms) == StepObjective::peak(candidate.terms),
            "a candidate's terms are what the objective says of its staging");
  }

  static constexpr const char* kPure = "equal objectives get equal answers";
  void check_same(const SearchResult& one, const SearchResult& other) const {
    const auto a = one.candidates.ranked(), b = other.candidates.ranked();
    const bool same = std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Candidate& x, const Candidate& y) {
      return x.staging == y.staging && x.terms.step == y.terms.step;
    });
    if (!same) {
      const auto fastest = [](const auto& all) { return all.empty() ? "nothing" : described(all.front().staging); };
      refuse(kPure, fastest(a) + ", and then " + fastest(b));
    }
    if (one.proven != other.proven || one.lower_bound != other.lower_bound || one.states != other.states)
      refuse(kPure, "another bound, or another number of states");
  }

  void check_claims(const SearchResult& found, bool exact) const {
    if (exact && !found.proven) refuse("a search of an exact policy ends with a proof", "proven = false");
    if (!found.proven && found.lower_bound <= Seconds{}) return;
    constexpr double kRounding = 1e-12;  // tolerance for sums in another order
    const SearchResult all = BruteForce{}.search(objective_);
    if (!all.candidates.any_fits()) return;
    const Seconds best = all.candidates.best_step();
    const std::string fastest = described(all.candidates.best().staging) + " takes " + std::to_string(best.value());
    if (found.proven && !(found.candidates.best_step() <= best * (1 + kRounding)))
      refuse("where it is proven, no staging that fits is faster", "none as fast, but " + fastest);
    if (found.lower_bound > best * (1 + kRounding))
      refuse("no staging is faster than the lower bound",
             std::to_string(found.lower_bound.value()) + ", but " + fastest);
  }

 private:
  [[nodiscard]] static Instance within(Instance instance, const SearchBudget& budget) {
    instance.request.budget = budget;
    return instance;
  }
  [[nodiscard]] const Workload& in_segments() {
    work_.segment_of = recompute_segments(work_, constraints_, 1 + static_cast<int>(seed_ % 4));
    return work_;
  }

  [[nodiscard]] bool is_partition(const Staging& staging) const {
    std::vector<bool> used(staging.replicas.size(), false);
    for (const int stage : staging.stage_of) {
      if (stage < 0 || stage >= staging.stages()) return false;
      used[static_cast<std::size_t>(stage)] = true;
    }
    return staging.stage_of.size() == work_.graph.node_count() && std::count(used.begin(), used.end(), false) == 0 &&
           std::all_of(staging.replicas.begin(), staging.replicas.end(), [](int n) { return n > 0; });
  }

  [[noreturn]] void refuse(const char* law, const std::string& given) const {
    throw LawBroken(law, seed_, described(work_) + "; " + described(constraints_), given);
  }

  std::uint64_t seed_;
  Instance instance_;
  RooflineCost cost_;
  Workload work_;
  Constraints constraints_;
  StepObjective objective_;
};

}  // namespace detail

/// Checks the laws of `StagingPolicy` on random models, clusters and requests. It checks every candidate of a search,
/// whether it fits or not, and every proof that the search claims.
/// @throws LawBroken with the first law that is broken; also if nothing that fits was found for any input
/// @cost usually under a millisecond for each input; some milliseconds if brute force must verify a proof
template <StagingPolicy P>
StagingTally check_staging_laws(const P& policy, const StagingLawOptions& options = {}) {
  StagingTally tally;
  for (std::uint64_t seed = options.first_seed; seed < options.first_seed + static_cast<std::uint64_t>(options.inputs);
       ++seed) {
    try {
      const detail::StagingProblem problem(seed, options);
      const SearchResult found = problem.search(policy);
      problem.check_same(found, problem.search(policy));
      for (const Candidate& candidate : found.candidates.ranked()) problem.check(candidate);
      problem.check_claims(found, options.exact);
      ++tally.searched;
      if (!found.candidates.any_fits()) continue;
      const Candidate& best = found.candidates.best();
      ++tally.fitting;
      tally.pipelined += best.staging.stages() > 1 ? 1 : 0;
      tally.recomputed += best.terms.optimizations.recomputes() ? 1 : 0;
      tally.sharded += best.terms.optimizations.zero > 0 ? 1 : 0;
    } catch (const CaptureError&) {  // planners refuse a forced plan that mixes samples before they search
    }
  }
  if (tally.searched > 0 && tally.fitting == 0) {
    throw LawBroken("a search finds something that fits for some input", options.first_seed,
                    std::to_string(tally.searched) + " inputs", "nothing that fits for any");
  }
  return tally;
}

}  // namespace autopar::testing
