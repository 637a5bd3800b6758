#include <autopar/graph/concepts.hpp>

#include <string>
#include <vector>

#include <archetypes/graph.hpp>
#include <autopar/graph/algorithms/acyclic_coarsening.hpp>
#include <autopar/graph/algorithms/acyclic_splitting.hpp>
#include <autopar/graph/algorithms/connected_components.hpp>
#include <autopar/graph/algorithms/convexity.hpp>
#include <autopar/graph/algorithms/critical_path.hpp>
#include <autopar/graph/algorithms/downsets.hpp>
#include <autopar/graph/algorithms/levels.hpp>
#include <autopar/graph/algorithms/liveness.hpp>
#include <autopar/graph/algorithms/partition_weights.hpp>
#include <autopar/graph/algorithms/quotient.hpp>
#include <autopar/graph/algorithms/reachability.hpp>
#include <autopar/graph/algorithms/strongly_connected_components.hpp>
#include <autopar/graph/algorithms/topological_order.hpp>
#include <autopar/graph/graph.hpp>
#include <autopar/graph/weighted_view.hpp>
#include <catch_shim.hpp>

using namespace autopar;

namespace {

// 2 -> 0 -> 1, 2 -> 1 twice, 3 alone
const std::vector<archetypes::Ends> kEdges{{2, 0}, {0, 1}, {2, 1}, {2, 1}};

}  // namespace

TEST_CASE("algorithms on directed graphs need DirectedGraph alone", "[graph][archetype]") {
  const archetypes::Directed graph(4, kEdges);
  const std::vector order{NodeId(2), NodeId(0), NodeId(1), NodeId(3)};
  CHECK(topological_order(graph) == order);
  CHECK(positions_in(graph, order) == std::vector<std::size_t>{1, 2, 0, 3});
  CHECK(is_acyclic(graph));
  CHECK(levels(graph) == std::vector<std::size_t>{1, 2, 0, 0});
  CHECK(reachable_from(graph, NodeSet(4, {NodeId(0)})) == NodeSet(4, {NodeId(0), NodeId(1)}));
  CHECK(TransitiveClosure(graph).reaches(NodeId(2), NodeId(1)));
  CHECK_FALSE(is_convex(graph, NodeSet(4, {NodeId(2), NodeId(1)})));
  CHECK_FALSE(ConvexityTester(graph)(std::vector{NodeId(2), NodeId(1)}));
  CHECK(connected_components(graph).block_count() == 2);
  CHECK(strongly_connected_components(graph).block_count() == 4);
  CHECK(quotient(graph, Partition::singletons(4)).edge_count() == 3);
  CHECK(acyclic_coarsening(graph, {{NodeId(2), NodeId(1)}}).block_count() == 2);
  CHECK(liveness(graph, order)[2] == LiveInterval{0, 2});
  CHECK(count_downsets(graph, 100) == 8u);
  CHECK(enumerate_downsets(graph, 100)->size() == 8);
}

TEST_CASE("algorithms that walk backwards need BidirectionalGraph alone", "[graph][archetype]") {
  const archetypes::Bidirectional graph(4, kEdges);
  CHECK(acyclic_splitting(graph, {0, 0, 0, -1}).size() == 2);
  CHECK(reaching(graph, NodeSet(4, {NodeId(0)})) == NodeSet(4, {NodeId(0), NodeId(2)}));
  CHECK(convex_closure(graph, NodeSet(4, {NodeId(2), NodeId(1)})) == NodeSet(4, {NodeId(0), NodeId(1), NodeId(2)}));
  const auto path = critical_path(
      graph, [](NodeId) { return archetypes::Cost(1); }, [](EdgeId) { return archetypes::Cost(1); });
  CHECK((path.cost == archetypes::Cost(5)));
  CHECK(path.nodes == std::vector{NodeId(2), NodeId(0), NodeId(1)});
}

TEST_CASE("sums over blocks need WeightedGraph alone", "[graph][archetype]") {
  const archetypes::Weighted graph(4, kEdges);
  const Partition partition({BlockId(0), BlockId(1), BlockId(0), BlockId(1)});
  const auto costs = block_costs(graph, partition);
  CHECK((costs[0] == archetypes::Cost(4)));
  CHECK((costs[1] == archetypes::Cost(6)));
  CHECK(cut_bytes(graph, partition) == Bytes(20 + 30 + 40));
}

TEST_CASE("a WeightedView makes a graph with any payloads a WeightedGraph", "[graph][archetype]") {
  Graph<std::string, int> graph;
  const NodeId a = graph.add_node("long name"), b = graph.add_node("b");
  graph.add_edge(a, b, 5);
  const WeightedView view(
      graph, [&](NodeId node) { return graph[node].size(); }, [&](EdgeId edge) { return Bytes(graph[edge]); });
  static_assert(WeightedGraph<decltype(view)>);
  CHECK(topological_order(view) == std::vector{a, b});
  CHECK(block_costs(view, Partition::singletons(2)) == std::vector<std::size_t>{9, 1});
  CHECK(cut_bytes(view, Partition::singletons(2)) == Bytes(5));
}
