#include <autopar/graph/algorithms/acyclic_splitting.hpp>

#include <random>
#include <set>

#include <catch_shim.hpp>

#include "../random_graphs.hpp"

namespace autopar {
namespace {

using random_graphs::below;
using random_graphs::PlainGraph;

/// By node: the position of its part.
std::vector<std::size_t> part_of(const PlainGraph& graph, const std::vector<std::vector<NodeId>>& parts) {
  std::vector<std::size_t> out(graph.node_count(), parts.size());
  std::size_t covered = 0;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    for (const NodeId node : parts[p]) {
      CHECK(out[node.index()] == parts.size());
      out[node.index()] = p;
      ++covered;
    }
  }
  CHECK(covered == graph.node_count());
  return out;
}

/// Every edge leads on, inside a part or to a later one.
void check_order(const PlainGraph& graph, const std::vector<std::vector<NodeId>>& parts) {
  const auto of = part_of(graph, parts);
  for (const EdgeId edge : graph.edges()) CHECK(of[graph.source(edge).index()] <= of[graph.target(edge).index()]);
  std::vector<std::size_t> at(graph.node_count());
  for (const auto& part : parts) {
    for (std::size_t i = 0; i < part.size(); ++i) at[part[i].index()] = i;
  }
  for (const EdgeId edge : graph.edges()) {
    const auto source = graph.source(edge), target = graph.target(edge);
    if (of[source.index()] == of[target.index()]) CHECK(at[source.index()] < at[target.index()]);
  }
}

std::size_t distinct_groups(const std::vector<int>& group_of) {
  const std::set<int> all(group_of.begin(), group_of.end());
  std::size_t alone = 0;
  for (const int group : group_of) alone += group < 0 ? 1 : 0;
  return all.size() - all.count(-1) + alone;
}

bool quotient_is_acyclic(const PlainGraph& graph, const std::vector<int>& group_of) {
  int next = 100;
  std::vector<int> block = group_of;
  for (int& of_node : block) {
    if (of_node < 0) of_node = next++;
  }
  PlainGraph contracted;
  for (int i = 0; i < next; ++i) contracted.add_node();
  for (const EdgeId edge : graph.edges()) {
    const int from = block[graph.source(edge).index()], to = block[graph.target(edge).index()];
    if (from != to) contracted.add_edge(NodeId(from), NodeId(to));
  }
  return is_acyclic(contracted);
}

TEST_CASE("acyclic_splitting: parts are ordered, splits are necessary", "[laws]") {
  std::mt19937 random(11);
  int whole = 0, split = 0;
  for (int round = 0; round < 3000; ++round) {
    const auto graph = random_graphs::random_dag(random, 12);
    const std::size_t groups = 1 + below(random, 4);
    std::vector<int> group_of;
    for (std::size_t i = 0; i < graph.node_count(); ++i)
      group_of.push_back(static_cast<int>(below(random, groups + 1)) - 1);
    const auto parts = acyclic_splitting(graph, group_of);
    check_order(graph, parts);
    for (const auto& part : parts) {
      const int group = group_of[part.front().index()];
      for (const NodeId node : part) CHECK(group_of[node.index()] == group);
      if (group < 0) CHECK(part.size() == 1);
    }
    const bool stays = quotient_is_acyclic(graph, group_of);
    CHECK((parts.size() == distinct_groups(group_of)) == stays);
    ++(stays ? whole : split);
  }
  CHECK(whole > 300);
  CHECK(split > 300);
}

TEST_CASE("acyclic_splitting: a non-convex group is split") {
  PlainGraph graph = random_graphs::chain(5);
  const auto parts = acyclic_splitting(graph, {0, 0, -1, 0, 0});
  REQUIRE(parts.size() == 3);
  CHECK(parts[0] == std::vector<NodeId>{NodeId(0), NodeId(1)});
  CHECK(parts[1] == std::vector<NodeId>{NodeId(2)});
  CHECK(parts[2] == std::vector<NodeId>{NodeId(3), NodeId(4)});
}

TEST_CASE("acyclic_splitting: a group follows all its predecessors") {
  PlainGraph graph;  // 0 and 3 are one group; 3 also needs 2, which needs 1 alone
  for (int i = 0; i < 4; ++i) graph.add_node();
  graph.add_edge(NodeId(1), NodeId(2));
  graph.add_edge(NodeId(2), NodeId(3));
  const auto parts = acyclic_splitting(graph, {0, -1, -1, 0});
  REQUIRE(parts.size() == 3);
  CHECK(parts[2] == std::vector<NodeId>{NodeId(0), NodeId(3)});
}

TEST_CASE("acyclic_splitting: mutually dependent groups are split") {
  PlainGraph graph;  // 0 -> 1, 2 -> 3 with groups {0, 3} and {1, 2}: each is convex, together they are not
  for (int i = 0; i < 4; ++i) graph.add_node();
  graph.add_edge(NodeId(0), NodeId(1));
  graph.add_edge(NodeId(2), NodeId(3));
  const auto parts = acyclic_splitting(graph, {0, 1, 1, 0});
  check_order(graph, parts);
  CHECK(parts.size() == 3);
}

TEST_CASE("acyclic_splitting: edge cases") {
  CHECK(acyclic_splitting(PlainGraph(), {}).empty());
  CHECK_THROWS_AS(acyclic_splitting(random_graphs::chain(3), {0}), InvalidArgument);
  PlainGraph circle = random_graphs::chain(2);
  circle.add_edge(NodeId(1), NodeId(0));
  CHECK_THROWS_AS(acyclic_splitting(circle, {0, 0}), InvalidArgument);
  const auto parts = acyclic_splitting(random_graphs::chain(100'000), std::vector<int>(100'000, 0));
  CHECK(parts.size() == 1);
}

}  // namespace
}  // namespace autopar
