#include <autopar/testing/staging_laws.hpp>

#include <functional>
#include <stdexcept>
#include <utility>

#include <autopar/plan/search/exact_staging.hpp>
#include <autopar/plan/search/uniform_staging.hpp>

#include <catch_shim.hpp>

#include "law_of.hpp"

namespace staging_laws_test {

using namespace autopar;

using Change = std::function<void(const StepObjective&, Candidate&)>;

/// A good policy's answer with one change to its fastest staging, which is the only one that is kept.
struct Changed {
  using policy_category = staging_policy_tag;
  Change change;
  SearchResult search(const StepObjective& objective) const {
    SearchResult out{Candidates(objective.constraints().memory)};
    const SearchResult found = UniformStaging{}.search(objective);
    if (!found.candidates.any_fits()) return out;
    Candidate best = found.candidates.best();
    change(objective, best);
    out.candidates.offer(best);
    return out;
  }
};

/// A good policy's answer with other claims about it.
struct Claims {
  using policy_category = staging_policy_tag;
  std::function<void(SearchResult&)> claim;
  SearchResult search(const StepObjective& objective) const {
    SearchResult out = UniformStaging{}.search(objective);
    claim(out);
    return out;
  }
};

/// Another answer every second time.
struct Moody {
  using policy_category = staging_policy_tag;
  int* calls;
  SearchResult search(const StepObjective& objective) const {
    if (++*calls % 2 == 0) return SearchResult{Candidates(objective.constraints().memory)};
    return UniformStaging{}.search(objective);
  }
};

/// @param what  how it throws, or nothing at all
struct FindsNothing {
  using policy_category = staging_policy_tag;
  bool throws = false;
  SearchResult search(const StepObjective& objective) const {
    if (throws) throw std::out_of_range("no such cut");
    return SearchResult{Candidates(objective.constraints().memory)};
  }
};

template <class P>
std::string law_broken_by(const P& policy, const testing::StagingLawOptions& options = {}) {
  return testing::broken_law([&] { testing::check_staging_laws(policy, options); });
}

/// Two stages, the second of one node that has others before and behind it.
void with_a_hole(const StepObjective& objective, Candidate& candidate) {
  const auto& graph = objective.work().graph;
  for (const NodeId node : graph.nodes()) {
    if (graph.in_edges(node).empty() || graph.out_edges(node).empty()) continue;
    candidate.staging.stage_of.assign(graph.node_count(), 0);
    candidate.staging.stage_of[node.index()] = 1;
    candidate.staging.replicas = {1, 1};
  }
}

TEST_CASE("check_staging_laws: finds each broken law", "[laws]") {
  CHECK(law_broken_by(Changed{[](const StepObjective&, Candidate&) {}}).empty());
  CHECK(law_broken_by(Changed{[](const StepObjective&, Candidate& candidate) {
          candidate.staging.replicas.push_back(1);
        }}) == "the stages partition the nodes, and none is empty");
  CHECK(law_broken_by(Changed{[](const StepObjective&, Candidate& candidate) {
          candidate.staging.stage_of.front() = candidate.staging.stages();
        }}) == "the stages partition the nodes, and none is empty");
  CHECK(law_broken_by(Changed{with_a_hole}) == "every stage is convex");
  CHECK(law_broken_by(Changed{[](const StepObjective&, Candidate& candidate) {
          for (int& stage : candidate.staging.stage_of) stage = candidate.staging.stages() - 1 - stage;
        }}) == "no value flows to an earlier stage");
  CHECK(law_broken_by(Changed{[](const StepObjective& objective, Candidate& candidate) {
          candidate.staging.microbatches = objective.constraints().microbatches.back() + 1;
          candidate.terms = objective(candidate.staging);
        }}) == "the constraints are met");
  CHECK(law_broken_by(Changed{[](const StepObjective& objective, Candidate& candidate) {
          candidate.staging.replicas.back() += objective.constraints().world;
        }}) == "the constraints are met");
  CHECK(law_broken_by(Changed{[](const StepObjective&, Candidate& candidate) {
          candidate.terms.step = candidate.terms.step * 0.99;
        }}) == "a candidate's terms are what the objective says of its staging");
}

TEST_CASE("check_staging_laws: finds false claims, nondeterminism", "[laws]") {
  int calls = 0;
  CHECK(law_broken_by(Moody{&calls}) == "equal objectives get equal answers");
  CHECK(law_broken_by(Claims{[](SearchResult& found) { found.proven = true; }}) ==
        "where it is proven, no staging that fits is faster");
  CHECK(law_broken_by(Claims{[](SearchResult& found) { found.lower_bound = found.candidates.best_step(); }}) ==
        "no staging is faster than the lower bound");
  CHECK(law_broken_by(UniformStaging{}, {.exact = true}) == "a search of an exact policy ends with a proof");
  CHECK(law_broken_by(FindsNothing{.throws = true}) == "a search that finds nothing says so, and does not throw");
  CHECK(law_broken_by(FindsNothing{}) == "a search finds something that fits for some input");
  CHECK(law_broken_by(ExactStaging{}, {.exact = true, .inputs = 50}).empty());
}

TEST_CASE("check_staging_laws: the message has seed, input and staging", "[laws]") {
  using Catch::Matchers::ContainsSubstring;
  const Changed hole{with_a_hole};
  CHECK_THROWS_WITH(testing::check_staging_laws(hole),
                    ContainsSubstring("law broken: every stage is convex") && ContainsSubstring("seed: ") &&
                        ContainsSubstring("edges 0>1") && ContainsSubstring("the policy gave: stages 0 0 0 1 0 of"));
  try {
    testing::check_staging_laws(hole);
  } catch (const testing::LawBroken& broken) {  // the seed alone brings it back
    CHECK(law_broken_by(hole, {.first_seed = broken.seed(), .inputs = 1}) == broken.law());
  }
}

}  // namespace staging_laws_test
