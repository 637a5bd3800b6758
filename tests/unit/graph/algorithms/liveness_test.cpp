#include <autopar/graph/algorithms/liveness.hpp>

#include <random>
#include <vector>

#include <autopar/graph/algorithms/topological_order.hpp>
#include <catch_shim.hpp>
#include <unit/graph/random_graphs.hpp>

using namespace autopar;
using namespace autopar::random_graphs;

TEST_CASE("a value is alive at a position if it is made by then and read then or later", "[graph]") {
  std::mt19937 random(17);
  for (int i = 0; i < 200; ++i) {
    const PlainGraph graph = random_dag(random, 10);
    const auto order = topological_order(graph);
    const auto intervals = liveness(graph, order);
    const auto size = [](NodeId node) { return Bytes(1 << node.value()); };
    const auto alive = live_bytes(intervals, size);
    REQUIRE(alive.size() == order.size());
    for (std::size_t now = 0; now < order.size(); ++now) {
      Bytes expected{};
      for (std::size_t made = 0; made <= now; ++made) {
        bool needed = made == now;
        for (std::size_t later = now; later < order.size(); ++later) {
          needed = needed || std::ranges::count(graph.successors(order[made]), order[later]) > 0;
        }
        if (needed) expected += size(order[made]);
      }
      CHECK(alive[now] == expected);
    }
  }
}

TEST_CASE("liveness depends on the order", "[graph]") {
  // a feeds b and c, d reads b
  PlainGraph graph;
  const NodeId a = graph.add_node(), b = graph.add_node(), c = graph.add_node(), d = graph.add_node();
  graph.add_edge(a, b);
  graph.add_edge(a, c);
  graph.add_edge(b, d);
  const auto early = liveness(graph, {a, c, b, d});
  CHECK(early[a.index()] == LiveInterval{0, 2});
  CHECK(early[c.index()] == LiveInterval{1, 1});
  const auto late = liveness(graph, {a, b, d, c});
  CHECK(late[a.index()] == LiveInterval{0, 3});
  CHECK(late[b.index()] == LiveInterval{1, 2});
  CHECK_THROWS_WITH(liveness(graph, {b, a, c, d}), "the order puts node 1 before its predecessor, node 0");
}

TEST_CASE("no nodes need no bytes; impossible intervals are refused", "[graph]") {
  CHECK(liveness(PlainGraph(), {}).empty());
  CHECK(live_bytes(std::vector<LiveInterval>{}, [](NodeId) { return Bytes(1); }).empty());
  const auto one = [](NodeId) { return Bytes(1); };
  CHECK_THROWS_WITH(live_bytes(std::vector<LiveInterval>{{0, 1}}, one),
                    "live_bytes: the interval of node 0 is [0, 1] among 1 positions");
  CHECK_THROWS_AS(live_bytes(std::vector<LiveInterval>{{1, 0}, {0, 0}}, one), InvalidArgument);
}
