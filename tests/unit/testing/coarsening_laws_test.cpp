#include <autopar/testing/coarsening_laws.hpp>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <autopar/plan/multilevel/heavy_edge.hpp>

#include <catch_shim.hpp>

#include "law_of.hpp"

namespace coarsening_laws_test {

using namespace autopar;

struct Coarsens {
  using policy_category = coarsening_policy_tag;
  std::function<Partition(const Workload&)> how;
  Partition coarsen(const Workload& work, std::int64_t, int) const { return how(work); }
};

std::string law_broken_by(const std::function<Partition(const Workload&)>& how) {
  return testing::broken_law([&] { testing::check_coarsening_laws(Coarsens{how}); });
}

Partition singletons(const Workload& work) { return Partition::singletons(work.graph.node_count()); }

/// The ends of a path of two edges together, and all others alone.
Partition around_a_node(const Workload& work) {
  for (const NodeId node : work.graph.nodes()) {
    if (work.graph.in_edges(node).empty() || work.graph.out_edges(node).empty()) continue;
    const NodeId before = *work.graph.predecessors(node).begin(), behind = *work.graph.successors(node).begin();
    std::vector<BlockId> block_of;
    for (const NodeId other : work.graph.nodes()) {
      const NodeId with = other == behind ? before : other;
      block_of.push_back(BlockId(with.value() - (with > behind ? 1 : 0)));
    }
    return Partition(std::move(block_of));
  }
  return singletons(work);
}

TEST_CASE("check_coarsening_laws: finds each broken law", "[laws]") {
  CHECK(law_broken_by(singletons).empty());
  CHECK(law_broken_by(around_a_node) == "the blocks do not depend on one another in a circle");
  CHECK(law_broken_by([](const Workload& work) { return Partition::singletons(work.graph.node_count() + 1); }) ==
        "the blocks partition the nodes");
  CHECK(law_broken_by([](const Workload& work) {
          return Partition(std::vector<BlockId>(work.graph.node_count(), BlockId(0)));
        }) == "there are as many blocks as were asked for, or nodes");
  CHECK(law_broken_by([](const Workload&) -> Partition { throw std::out_of_range("no such block"); }) ==
        "every workload can be coarsened, if only to its nodes");
  int calls = 0;
  CHECK(law_broken_by([&](const Workload& work) {
          return ++calls % 2 == 0 ? singletons(work) : HeavyEdge{.max_blocks = 6}.coarsen(work, 1, 6);
        }) == "equal workloads get equal blocks");
}

TEST_CASE("check_coarsening_laws: the message has edges and blocks", "[laws]") {
  using Catch::Matchers::ContainsSubstring;
  CHECK_THROWS_WITH(testing::check_coarsening_laws(Coarsens{around_a_node}, {.max_nodes = 4}),
                    ContainsSubstring("in a circle") && ContainsSubstring("nodes, edges 0>1") &&
                        ContainsSubstring("blocks 0 ") && ContainsSubstring(" of the nodes"));
}

}  // namespace coarsening_laws_test
