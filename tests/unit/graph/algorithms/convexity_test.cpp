#include <autopar/graph/algorithms/convexity.hpp>

#include <random>
#include <vector>

#include <autopar/graph/algorithms/reachability.hpp>
#include <catch_shim.hpp>
#include <unit/graph/random_graphs.hpp>

using namespace autopar;
using namespace autopar::random_graphs;

namespace {

NodeSet set_of(std::size_t universe, std::size_t mask) {
  NodeSet set(universe);
  for (std::size_t i = 0; i < universe; ++i) {
    if ((mask >> i) & 1) set.insert(NodeId::of(i));
  }
  return set;
}

}  // namespace

TEST_CASE("reachable_from: agrees with Warshall, cyclic or not", "[graph]") {
  std::mt19937 random(4);
  for (int i = 0; i < 200; ++i) {
    const bool acyclic = i % 2 == 0;
    const PlainGraph graph = acyclic ? random_dag(random, 10) : random_digraph(random, 10);
    const std::size_t n = graph.node_count();
    const auto paths = brute_force_paths(graph);
    for (std::size_t a = 0; a < n; ++a) {
      const NodeSet from = reachable_from(graph, NodeSet(n, {NodeId::of(a)}));
      const NodeSet to = reaching(graph, NodeSet(n, {NodeId::of(a)}));
      for (std::size_t b = 0; b < n; ++b) {
        CHECK(from.contains(NodeId::of(b)) == (a == b || paths[a][b]));
        CHECK(to.contains(NodeId::of(b)) == (a == b || paths[b][a]));
        if (acyclic) CHECK(TransitiveClosure(graph).reaches(NodeId::of(a), NodeId::of(b)) == paths[a][b]);
      }
    }
  }
}

TEST_CASE("is_convex: agrees with the definition for every set", "[graph]") {
  std::mt19937 random(5);
  for (int i = 0; i < 60; ++i) {
    const bool acyclic = i % 3 != 0;
    const PlainGraph graph = acyclic ? random_dag(random, 8) : random_digraph(random, 8);
    const std::size_t n = graph.node_count();
    const auto paths = brute_force_paths(graph);
    std::vector<bool> convex(std::size_t{1} << n);
    for (std::size_t mask = 0; mask < convex.size(); ++mask) {
      convex[mask] = brute_force_convex(paths, mask);
      CHECK(is_convex(graph, set_of(n, mask)) == convex[mask]);
    }
    if (!acyclic) continue;
    ConvexityTester tester(graph);
    for (std::size_t mask = 0; mask < convex.size(); ++mask) {
      const NodeSet set = set_of(n, mask);
      CHECK(tester(set) == convex[mask]);
      const NodeSet closure = convex_closure(graph, set);
      CHECK(set.is_subset_of(closure));
      CHECK(tester(closure));
      CHECK((closure == set) == convex[mask]);
    }
  }
}

TEST_CASE("convex_closure: smallest convex superset", "[graph]") {
  std::mt19937 random(6);
  for (int i = 0; i < 20; ++i) {
    const PlainGraph graph = random_dag(random, 7);
    const std::size_t n = graph.node_count();
    const auto paths = brute_force_paths(graph);
    for (std::size_t mask = 0; mask < (std::size_t{1} << n); ++mask) {
      NodeSet smallest = NodeSet::all(n);
      for (std::size_t around = 0; around < (std::size_t{1} << n); ++around) {
        if ((mask & ~around) == 0 && brute_force_convex(paths, around)) smallest &= set_of(n, around);
      }
      CHECK(convex_closure(graph, set_of(n, mask)) == smallest);
    }
  }
}

TEST_CASE("ConvexityTester: reusable for any number and form of sets", "[graph]") {
  const PlainGraph graph = chain(100'000);
  ConvexityTester tester(graph);
  CHECK(tester(std::vector<NodeId>{}));
  CHECK(tester(std::vector{NodeId(5), NodeId(5)}));
  CHECK_FALSE(tester(std::vector{NodeId(0), NodeId(99'999)}));
  CHECK_FALSE(tester(std::vector{NodeId(7), NodeId(5)}));
  CHECK(tester(std::vector{NodeId(7), NodeId(5), NodeId(6)}));
  for (int i = 0; i + 1 < 100'000; ++i) REQUIRE(tester(std::vector{NodeId(i), NodeId(i + 1)}));
  CHECK(tester(NodeSet::all(100'000)));
  CHECK_THROWS_WITH(tester(std::vector{NodeId(100'000)}),
                    "ConvexityTester: node 100000 is not one of the 100000 nodes of the graph");
  CHECK_THROWS_AS(tester(std::vector{NodeId::none()}), InvalidArgument);
}

TEST_CASE("ConvexityTester: refuses cyclic graphs", "[graph]") {
  PlainGraph graph;
  const NodeId node = graph.add_node();
  graph.add_edge(node, node);
  CHECK_THROWS_AS(ConvexityTester(graph), InvalidArgument);
  CHECK_THROWS_AS(TransitiveClosure(graph), InvalidArgument);
  CHECK(is_convex(graph, NodeSet(1, {node})));
}
