#include <autopar/graph/algorithms/critical_path.hpp>

#include <algorithm>
#include <random>
#include <vector>

#include <catch_shim.hpp>
#include <unit/graph/random_graphs.hpp>

using namespace autopar;
using namespace autopar::random_graphs;

namespace {

/// The longest path to `node` by trying all of them; costs of nodes and edges.
template <class NodeCost, class EdgeCost>
long longest_to(const PlainGraph& graph, NodeId node, const NodeCost& node_cost, const EdgeCost& edge_cost) {
  long longest = 0;
  for (const EdgeId edge : graph.in_edges(node)) {
    longest = std::max(longest, longest_to(graph, graph.source(edge), node_cost, edge_cost) + edge_cost(edge));
  }
  return longest + node_cost(node);
}

}  // namespace

TEST_CASE("critical_path: agrees with enumeration of all paths", "[graph]") {
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    const PlainGraph graph = random_dag(random, 8);
    std::vector<long> node_costs(graph.node_count()), edge_costs(graph.edge_count());
    for (auto& cost : node_costs) cost = static_cast<long>(below(random, 5));
    for (auto& cost : edge_costs) cost = static_cast<long>(below(random, 5));
    const auto node_cost = [&](NodeId node) { return node_costs[node.index()]; };
    const auto edge_cost = [&](EdgeId edge) { return edge_costs[edge.index()]; };
    long expected = 0;
    for (const NodeId node : graph.nodes())
      expected = std::max(expected, longest_to(graph, node, node_cost, edge_cost));

    const auto path = critical_path(graph, node_cost, edge_cost);
    CHECK(path.cost == expected);
    long along = 0;
    for (std::size_t k = 0; k < path.nodes.size(); ++k) {
      along += node_cost(path.nodes[k]);
      if (k == 0) continue;
      long best = -1;  // of parallel edges the dearest counts
      for (const EdgeId edge : graph.in_edges(path.nodes[k])) {
        if (graph.source(edge) == path.nodes[k - 1]) best = std::max(best, edge_cost(edge));
      }
      REQUIRE(best >= 0);
      along += best;
    }
    CHECK(along == expected);
  }
}

TEST_CASE("critical_path: keeps the unit and prefers small ids", "[graph]") {
  for (const bool small_first : {false, true}) {
    PlainGraph graph;
    for (int i = 0; i < 4; ++i) graph.add_node();
    graph.add_edge(NodeId(small_first ? 1 : 2), NodeId(3));
    graph.add_edge(NodeId(small_first ? 2 : 1), NodeId(3));
    const auto path = critical_path(graph, [](NodeId) { return Seconds(0.5); });
    CHECK(path.cost == Seconds(1.0));
    CHECK(path.nodes == std::vector{NodeId(1), NodeId(3)});
  }
}

TEST_CASE("critical_path: empty graph and nodes without cost", "[graph]") {
  const auto one = [](NodeId) { return 1; };
  CHECK(critical_path(PlainGraph(), one).cost == 0);
  CHECK(critical_path(PlainGraph(), one).nodes.empty());
  CHECK(critical_path(chain(3), [](NodeId) { return 0; }).nodes == std::vector{NodeId(0)});
  CHECK(critical_path(chain(100'000), one).cost == 100'000);
}
