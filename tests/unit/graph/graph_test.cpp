#include <autopar/graph/graph.hpp>

#include <algorithm>
#include <memory>
#include <ranges>
#include <string>
#include <vector>

#include <catch_shim.hpp>

using namespace autopar;

namespace {

template <class Range>
auto listed(Range&& range) {
  std::vector<std::ranges::range_value_t<Range>> list;
  for (const auto& element : range) list.push_back(element);
  return list;
}

struct Task {
  explicit Task(std::string text) : name(std::move(text)) {}
  std::string name;
};

}  // namespace

TEST_CASE("Graph: new graph is empty", "[graph]") {
  const Graph<int, int> graph;
  CHECK(graph.empty());
  CHECK(graph.node_count() == 0);
  CHECK(graph.edge_count() == 0);
  CHECK(listed(graph.nodes()).empty());
  CHECK(listed(graph.edges()).empty());
}

TEST_CASE("Graph: ids are dense, adjacency keeps insertion order", "[graph]") {
  Graph<std::string, int> graph;
  const NodeId a = graph.add_node("a"), b = graph.add_node("b"), c = graph.add_node("c");
  const EdgeId ac = graph.add_edge(a, c, 7), ab = graph.add_edge(a, b, 8), bc = graph.add_edge(b, c, 9);

  CHECK(listed(graph.nodes()) == std::vector{NodeId(0), NodeId(1), NodeId(2)});
  CHECK(listed(graph.edges()) == std::vector{EdgeId(0), EdgeId(1), EdgeId(2)});
  CHECK(graph[b] == "b");
  CHECK(graph[ab] == 8);
  graph[b] += "!";
  graph[ab] += 1;
  CHECK(graph[b] == "b!");
  CHECK(graph[ab] == 9);
  CHECK(graph.source(bc) == b);
  CHECK(graph.target(bc) == c);
  CHECK(listed(graph.out_edges(a)) == std::vector{ac, ab});
  CHECK(listed(graph.in_edges(c)) == std::vector{ac, bc});
  CHECK(listed(graph.successors(a)) == std::vector{c, b});
  CHECK(listed(graph.predecessors(c)) == std::vector{a, b});
  CHECK(listed(graph.in_edges(a)).empty());
}

TEST_CASE("Graph: parallel edges and self-loops are kept", "[graph]") {
  Graph<int, int> graph;
  const NodeId a = graph.add_node(), b = graph.add_node();
  const EdgeId first = graph.add_edge(a, b, 1), second = graph.add_edge(a, b, 2), loop = graph.add_edge(b, b, 3);
  CHECK(listed(graph.out_edges(a)) == std::vector{first, second});
  CHECK(listed(graph.successors(a)) == std::vector{b, b});
  CHECK(listed(graph.in_edges(b)) == std::vector{first, second, loop});
  CHECK(listed(graph.out_edges(b)) == std::vector{loop});
  CHECK(graph[first] == 1);
  CHECK(graph[second] == 2);
}

TEST_CASE("Graph: payloads may be move-only without a default", "[graph]") {
  Graph<Task, std::unique_ptr<int>> graph;
  const NodeId a = graph.add_node(Task("a")), b = graph.add_node(Task("b"));
  const EdgeId edge = graph.add_edge(a, b, std::make_unique<int>(5));
  const Graph<Task, std::unique_ptr<int>> moved = std::move(graph);
  CHECK(moved[b].name == "b");
  CHECK(*moved[edge] == 5);
}

TEST_CASE("Graph: a dangling edge is refused without side effects", "[graph]") {
  Graph<int, int> graph;
  const NodeId a = graph.add_node();
  CHECK_THROWS_WITH(graph.add_edge(a, NodeId(1)),
                    "Graph::add_edge: the target is node 1, but the graph has 1 nodes; add the node first");
  CHECK_THROWS_WITH(graph.add_edge(NodeId::none(), a),
                    "Graph::add_edge: the source is node -1, but the graph has 1 nodes; add the node first");
  CHECK(graph.edge_count() == 0);
  CHECK(listed(graph.out_edges(a)).empty());
}

TEST_CASE("Graph: in- and out-edges are consistent for 100,000 nodes", "[graph]") {
  Graph<int, int> graph;
  constexpr std::size_t kNodes = 100'000;
  graph.reserve(kNodes, 2 * kNodes);
  for (std::size_t i = 0; i < kNodes; ++i) graph.add_node();
  for (std::size_t i = 0; i < 2 * kNodes; ++i)
    graph.add_edge(NodeId::of(i * 7919 % kNodes), NodeId::of(i * 104729 % kNodes));
  std::size_t out = 0, in = 0, wrong = 0;
  for (const NodeId node : graph.nodes()) {
    for (const EdgeId edge : graph.out_edges(node)) out += 1, wrong += graph.source(edge) != node;
    for (const EdgeId edge : graph.in_edges(node)) in += 1, wrong += graph.target(edge) != node;
  }
  CHECK(out == graph.edge_count());
  CHECK(in == graph.edge_count());
  CHECK(wrong == 0);
}
