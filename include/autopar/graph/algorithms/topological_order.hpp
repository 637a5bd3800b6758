#pragma once
#include <cstddef>
#include <functional>
#include <queue>
#include <string>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/core/ids.hpp>
#include <autopar/graph/algorithms/cycle.hpp>
#include <autopar/graph/concepts.hpp>
#include <autopar/graph/iteration.hpp>

namespace autopar {

/// @brief The nodes of an acyclic graph, each after all its predecessors; among candidates the smallest id comes first.
/// @param name  the name of a node in the error
/// @return a permutation of the nodes
/// @throws InvalidArgument if the graph has a cycle, with the nodes along one
/// @cost O(edges + nodes log nodes)
/// @par Determinism the lexicographically smallest topological order, independent of the order of edges
/// @source Kahn, Topological sorting of large networks, CACM 5(11), 1962
template <DirectedGraph G, class NodeName = NumberedNode>
[[nodiscard]] std::vector<NodeId> topological_order(const G& graph, const NodeName& name = {}) {
  auto missing = detail::in_degrees(graph);
  std::priority_queue<NodeId, std::vector<NodeId>, std::greater<>> ready;
  for (const NodeId node : nodes_of(graph)) {
    if (missing[node.index()] == 0) ready.push(node);
  }
  std::vector<NodeId> order;
  order.reserve(graph.node_count());
  while (!ready.empty()) {
    const NodeId node = ready.top();
    ready.pop();
    order.push_back(node);
    for (const NodeId successor : successors_of(graph, node)) {
      if (--missing[successor.index()] == 0) ready.push(successor);
    }
  }
  if (order.size() != graph.node_count()) {
    throw InvalidArgument("the graph has a cycle, so its nodes cannot be put in order: " +
                          describe_cycle(*find_cycle(graph), name) + "; remove one of these edges");
  }
  return order;
}

/// @brief Whether a graph has neither a cycle nor a self-loop. O(nodes + edges).
template <DirectedGraph G>
[[nodiscard]] bool is_acyclic(const G& graph) {
  return !find_cycle(graph).has_value();
}

/// @brief The inverse of an order: the position of each node, by node id.
/// @throws InvalidArgument unless `order` names each of the nodes of `graph` once, each after all its predecessors
/// @cost O(nodes + edges)
template <DirectedGraph G>
[[nodiscard]] std::vector<std::size_t> positions_in(const G& graph, const std::vector<NodeId>& order) {
  if (order.size() != graph.node_count()) {
    throw InvalidArgument("an order of " + std::to_string(order.size()) + " nodes does not fit a graph of " +
                          std::to_string(graph.node_count()) + " nodes");
  }
  const std::size_t unset = order.size();
  std::vector<std::size_t> position(order.size(), unset);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const NodeId node = order[i];
    if (node.index() >= order.size()) {
      throw InvalidArgument("the order names node " + std::to_string(node.value()) + ", which the graph does not have");
    }
    if (position[node.index()] != unset) {
      throw InvalidArgument("the order names node " + std::to_string(node.value()) + " twice");
    }
    position[node.index()] = i;
  }
  for (const NodeId node : nodes_of(graph)) {
    for (const NodeId successor : successors_of(graph, node)) {
      if (position[node.index()] >= position[successor.index()]) {
        throw InvalidArgument("the order puts node " + std::to_string(successor.value()) +
                              " before its predecessor, node " + std::to_string(node.value()));
      }
    }
  }
  return position;
}

}  // namespace autopar
