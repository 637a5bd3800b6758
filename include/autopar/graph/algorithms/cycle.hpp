#pragma once
#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/graph/concepts.hpp>
#include <autopar/graph/iteration.hpp>

namespace autopar {

/// @brief Names a node by its number; the default in errors.
struct NumberedNode {
  [[nodiscard]] std::string operator()(NodeId node) const { return "node " + std::to_string(node.value()); }
};

namespace detail {

/// The in-degree of each node, by node; parallel edges count separately.
template <DirectedGraph G>
[[nodiscard]] std::vector<std::size_t> in_degrees(const G& graph) {
  std::vector<std::size_t> degrees(graph.node_count(), 0);
  for (const NodeId node : nodes_of(graph)) {
    for (const NodeId successor : successors_of(graph, node)) ++degrees[successor.index()];
  }
  return degrees;
}

}  // namespace detail

/// @brief Some cycle of a graph: the nodes along it, each once, the smallest first.
/// @return nullopt if the graph has no cycle; one node for a self-loop
/// @cost O(nodes + edges)
/// @par Determinism depends on the graph alone
template <DirectedGraph G>
[[nodiscard]] std::optional<std::vector<NodeId>> find_cycle(const G& graph) {
  // Remove sources until there is none. Each remaining node has a remaining predecessor, so walking backwards among
  // them finds a cycle.
  auto missing = detail::in_degrees(graph);
  std::vector<NodeId> peeled;
  peeled.reserve(graph.node_count());
  for (const NodeId node : nodes_of(graph)) {
    if (missing[node.index()] == 0) peeled.push_back(node);
  }
  for (std::size_t next = 0; next < peeled.size(); ++next) {
    for (const NodeId successor : successors_of(graph, peeled[next])) {
      if (--missing[successor.index()] == 0) peeled.push_back(successor);
    }
  }
  if (peeled.size() == graph.node_count()) return std::nullopt;

  std::vector<NodeId> predecessor(graph.node_count(), NodeId::none());
  NodeId walker = NodeId::none();
  for (const NodeId node : nodes_of(graph)) {
    if (missing[node.index()] == 0) continue;
    walker = node;
    for (const NodeId successor : successors_of(graph, node)) predecessor[successor.index()] = node;
  }
  std::vector<bool> visited(graph.node_count(), false);
  for (; !visited[walker.index()]; walker = predecessor[walker.index()]) visited[walker.index()] = true;

  std::vector<NodeId> cycle{walker};
  for (NodeId node = predecessor[walker.index()]; node != walker; node = predecessor[node.index()]) {
    cycle.push_back(node);
  }
  std::reverse(cycle.begin(), cycle.end());
  std::rotate(cycle.begin(), std::min_element(cycle.begin(), cycle.end()), cycle.end());
  return cycle;
}

/// @brief A cycle for an error message, e.g. "node 2 -> node 5 -> node 2"; the middle of a long one is left out.
/// @param cycle  nodes along the cycle, at least one
/// @param name   the name of a node
template <class NodeName = NumberedNode>
[[nodiscard]] std::string describe_cycle(const std::vector<NodeId>& cycle, const NodeName& name = {}) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (std::size_t i = 0; i < cycle.size(); ++i) {
    if (cycle.size() > kShown && i == kShown / 2) {
      text += "(" + std::to_string(cycle.size() - kShown) + " more) -> ";
      i = cycle.size() - kShown / 2;
    }
    text += name(cycle[i]) + " -> ";
  }
  return text + name(cycle.front());
}

}  // namespace autopar
