#include <autopar/graph/algorithms/quotient.hpp>

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include <autopar/graph/algorithms/acyclic_coarsening.hpp>
#include <autopar/graph/algorithms/convexity.hpp>
#include <autopar/graph/algorithms/strongly_connected_components.hpp>
#include <autopar/graph/algorithms/topological_order.hpp>
#include <catch_shim.hpp>
#include <unit/graph/random_graphs.hpp>

using namespace autopar;
using namespace autopar::random_graphs;
using Catch::Matchers::ContainsSubstring;

namespace {

Partition random_partition(std::mt19937& random, std::size_t nodes) {
  std::vector<BlockId> block_of;
  std::map<std::size_t, BlockId> dense;
  for (std::size_t i = 0; i < nodes; ++i) {
    block_of.push_back(dense.try_emplace(below(random, nodes), BlockId::of(dense.size())).first->second);
  }
  return Partition(block_of);
}

/// Every partition of n nodes, as restricted growth strings.
std::vector<Partition> all_partitions(std::size_t n) {
  std::vector<Partition> partitions;
  std::vector<BlockId> block_of(n, BlockId(0));
  const auto extend = [&](const auto& self, std::size_t node, std::size_t blocks) -> void {
    if (node == n) {
      partitions.emplace_back(block_of);
      return;
    }
    for (std::size_t block = 0; block <= blocks; ++block) {
      block_of[node] = BlockId::of(block);
      self(self, node + 1, std::max(blocks, block + 1));
    }
  };
  extend(extend, 0, 0);
  return partitions;
}

}  // namespace

TEST_CASE("contract: keeps each edge between blocks, one per block pair", "[graph]") {
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    const PlainGraph graph = random_digraph(random, 10);
    const Partition partition = random_partition(random, graph.node_count());
    const QuotientGraph blocks = contract(graph, partition);
    REQUIRE(blocks.node_count() == partition.block_count());
    for (const NodeId block : blocks.nodes()) CHECK(blocks[block] == partition.members(BlockId(block.value())));

    std::map<std::pair<NodeId, NodeId>, std::vector<EdgeId>> expected, actual;
    for (const EdgeId edge : graph.edges()) {
      const auto ends =
          std::pair(node_of(partition.block_of(graph.source(edge))), node_of(partition.block_of(graph.target(edge))));
      if (ends.first != ends.second) expected[ends].push_back(edge);
    }
    for (const EdgeId edge : blocks.edges()) {
      CHECK(actual.emplace(std::pair(blocks.source(edge), blocks.target(edge)), blocks[edge]).second);
    }
    CHECK(actual == expected);
  }
}

TEST_CASE("quotient: a cyclic quotient is refused, blocks are named", "[graph]") {
  const PlainGraph graph = chain(3);
  CHECK_THROWS_WITH(
      quotient(graph, Partition({BlockId(0), BlockId(1), BlockId(0)})),
      ContainsSubstring("block 0 (node 0 and 1 more) -> block 1 (node 1) -> block 0 (node 0 and 1 more)"));
  CHECK(quotient(graph, Partition({BlockId(0), BlockId(0), BlockId(1)})).edge_count() == 1);
  CHECK_THROWS_WITH(quotient(graph, Partition::singletons(2)),
                    "a partition of 2 nodes does not fit a graph of 3 nodes");
  CHECK(quotient(PlainGraph(), Partition()).empty());
}

TEST_CASE("strong components: mutually reachable, in reverse order", "[graph]") {
  std::mt19937 random(8);
  for (int i = 0; i < 300; ++i) {
    const PlainGraph graph = random_digraph(random, 10);
    const auto paths = brute_force_paths(graph);
    const Partition components = strongly_connected_components(graph);
    for (const NodeId a : graph.nodes()) {
      for (const NodeId b : graph.nodes()) {
        const bool mutual = a == b || (paths[a.index()][b.index()] && paths[b.index()][a.index()]);
        CHECK((components.block_of(a) == components.block_of(b)) == mutual);
      }
      for (const NodeId b : graph.successors(a)) CHECK(components.block_of(a) >= components.block_of(b));
    }
  }
  PlainGraph ring = chain(100'000);
  CHECK(strongly_connected_components(ring).block_count() == 100'000);
  ring.add_edge(NodeId(99'999), NodeId(0));
  CHECK(strongly_connected_components(ring).block_count() == 1);
  CHECK(strongly_connected_components(PlainGraph()).block_count() == 0);
}

TEST_CASE("acyclic_coarsening: finest acyclic one, also with cycles", "[graph]") {
  std::mt19937 random(9);
  for (int i = 0; i < 200; ++i) {
    const PlainGraph graph = i % 2 == 0 ? random_dag(random, 7) : random_digraph(random, 7);
    const Partition given = random_partition(random, graph.node_count());
    const Partition coarse = acyclic_coarsening(graph, given);
    CHECK(given.refines(coarse));
    const QuotientGraph blocks = quotient(graph, coarse);
    for (const EdgeId edge : blocks.edges()) CHECK(blocks.source(edge) < blocks.target(edge));
    for (const BlockId block : id_range<BlockId>(coarse.block_count())) {
      NodeSet members(graph.node_count());
      for (const NodeId node : coarse.members(block)) members.insert(node);
      CHECK(is_convex(graph, members));
    }
    for (const Partition& other : all_partitions(graph.node_count())) {
      if (given.refines(other) && is_acyclic(contract(graph, other))) CHECK(coarse.refines(other));
    }
  }
}

TEST_CASE("acyclic_coarsening: merges groups that share a node", "[graph]") {
  const PlainGraph graph = chain(7);
  const auto together =
      acyclic_coarsening(graph, {{NodeId(5), NodeId(3)}, {}, {NodeId(0)}, {NodeId(1), NodeId(1), NodeId(2)}});
  CHECK(together == Partition({BlockId(0), BlockId(1), BlockId(1), BlockId(2), BlockId(2), BlockId(2), BlockId(3)}));
  const auto shared = acyclic_coarsening(graph, {{NodeId(0), NodeId(1)}, {NodeId(1), NodeId(3)}});
  CHECK(shared.members(BlockId(0)) == std::vector{NodeId(0), NodeId(1), NodeId(2), NodeId(3)});
  CHECK(acyclic_coarsening(graph, std::vector<std::vector<NodeId>>{}) == Partition::singletons(7));
  CHECK_THROWS_WITH(acyclic_coarsening(graph, {{NodeId(0), NodeId(7)}}),
                    "acyclic_coarsening: a group names node 7, but the graph has 7 nodes");
  CHECK(acyclic_coarsening(chain(100'000), {{NodeId(0), NodeId(99'999)}}).block_count() == 1);
}
