#include <autopar/graph/algorithms/topological_order.hpp>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <catch_shim.hpp>
#include <unit/graph/random_graphs.hpp>

using namespace autopar;
using namespace autopar::random_graphs;
using Catch::Matchers::ContainsSubstring;

namespace {

/// Smallest-id-first straight from the definition, quadratic.
std::vector<NodeId> brute_force_order(const PlainGraph& graph) {
  std::vector<NodeId> order;
  std::vector<bool> done(graph.node_count(), false);
  while (order.size() < graph.node_count()) {
    for (const NodeId node : graph.nodes()) {
      const auto ready = graph.predecessors(node);
      if (done[node.index()] || !std::ranges::all_of(ready, [&](NodeId p) { return done[p.index()]; })) continue;
      done[node.index()] = true;
      order.push_back(node);
      break;
    }
  }
  return order;
}

}  // namespace

TEST_CASE("topological_order: lexicographically smallest", "[graph]") {
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    const PlainGraph graph = random_dag(random, 12);
    const auto order = topological_order(graph);
    CHECK(order == brute_force_order(graph));
    const auto position = positions_in(graph, order);
    for (std::size_t k = 0; k < order.size(); ++k) CHECK(position[order[k].index()] == k);
    CHECK(is_acyclic(graph));
  }
}

TEST_CASE("find_cycle: finds a cycle exactly where there is one", "[graph]") {
  std::mt19937 random(2);
  int cyclic = 0;
  for (int i = 0; i < 500; ++i) {
    const PlainGraph graph = random_digraph(random, 9);
    const auto paths = brute_force_paths(graph);
    bool expected = false;
    for (std::size_t node = 0; node < paths.size(); ++node) expected = expected || paths[node][node];
    const auto cycle = find_cycle(graph);
    REQUIRE(cycle.has_value() == expected);
    if (!cycle) continue;
    ++cyclic;
    auto sorted = *cycle;
    std::sort(sorted.begin(), sorted.end());
    CHECK(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end());
    CHECK(sorted.front() == cycle->front());
    for (std::size_t k = 0; k < cycle->size(); ++k) {
      const NodeId next = (*cycle)[(k + 1) % cycle->size()];
      CHECK(std::ranges::count(graph.successors((*cycle)[k]), next) > 0);
    }
    CHECK_THROWS_AS(topological_order(graph), InvalidArgument);
  }
  CHECK(cyclic > 100);
  CHECK(cyclic < 400);
}

TEST_CASE("topological_order: the error names the cycle's nodes", "[graph]") {
  Graph<std::string, int> graph;
  const NodeId start = graph.add_node("start"), a = graph.add_node("a"), b = graph.add_node("b");
  graph.add_edge(start, a);
  graph.add_edge(a, b);
  graph.add_edge(b, a);
  CHECK_THROWS_WITH(topological_order(graph), ContainsSubstring("node 1 -> node 2 -> node 1;"));
  CHECK_THROWS_WITH(topological_order(graph, [&](NodeId node) { return graph[node]; }),
                    ContainsSubstring(": a -> b -> a;"));
}

TEST_CASE("find_cycle: a self-loop is a cycle of one", "[graph]") {
  PlainGraph graph;
  const NodeId node = graph.add_node();
  graph.add_edge(node, node);
  CHECK(find_cycle(graph) == std::vector{node});
  CHECK_THROWS_WITH(topological_order(graph), ContainsSubstring("node 0 -> node 0"));
  CHECK_THROWS_AS(positions_in(graph, {node}), InvalidArgument);
}

TEST_CASE("describe_cycle: long cycles are abbreviated", "[graph]") {
  PlainGraph graph = chain(100'000);
  graph.add_edge(NodeId(99'999), NodeId(0));
  CHECK_THROWS_WITH(topological_order(graph),
                    ContainsSubstring("node 0 -> node 1 -> node 2 -> node 3 -> (99992 more) -> "
                                      "node 99996 -> node 99997 -> node 99998 -> node 99999 -> "
                                      "node 0;"));
  std::vector<NodeId> eight;
  for (int i = 0; i < 8; ++i) eight.push_back(NodeId(i));
  CHECK_THAT(describe_cycle(eight), !ContainsSubstring("more"));
}

TEST_CASE("topological_order: empty, edgeless and very long graphs", "[graph]") {
  CHECK(topological_order(PlainGraph()).empty());
  PlainGraph apart;
  for (int i = 0; i < 5; ++i) apart.add_node();
  CHECK(topological_order(apart) == std::vector{NodeId(0), NodeId(1), NodeId(2), NodeId(3), NodeId(4)});
  const auto order = topological_order(chain(100'000));
  REQUIRE(order.size() == 100'000);
  CHECK(std::is_sorted(order.begin(), order.end()));
}

TEST_CASE("positions_in: an invalid order is refused with the reason", "[graph]") {
  const PlainGraph graph = chain(3);
  const NodeId a(0), b(1), c(2);
  CHECK_THROWS_WITH(positions_in(graph, {a, b}), "an order of 2 nodes does not fit a graph of 3 nodes");
  CHECK_THROWS_WITH(positions_in(graph, {a, b, b}), "the order names node 1 twice");
  CHECK_THROWS_WITH(positions_in(graph, {a, b, NodeId(3)}), "the order names node 3, which the graph does not have");
  CHECK_THROWS_WITH(positions_in(graph, {a, b, NodeId::none()}),
                    "the order names node -1, which the graph does not have");
  CHECK_THROWS_WITH(positions_in(graph, {b, a, c}), "the order puts node 1 before its predecessor, node 0");
}
