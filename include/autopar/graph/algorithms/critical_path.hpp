#pragma once
#include <algorithm>
#include <concepts>
#include <functional>
#include <type_traits>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/graph/algorithms/topological_order.hpp>
#include <autopar/graph/concepts.hpp>
#include <autopar/graph/iteration.hpp>

namespace autopar {

/// @brief A path and the total cost of its nodes and edges.
template <class Cost>
struct CriticalPath {
  Cost cost{};                ///< zero for a graph without nodes
  std::vector<NodeId> nodes;  ///< from first to last
};

/// @brief The most expensive path of an acyclic graph: the least time in which it can run on any number of devices.
/// @param node_cost  of a node, non-negative; a number or a quantity such as Seconds, whose default is zero
/// @param edge_cost  of an edge, of the same type
/// @throws InvalidArgument if the graph has a cycle, with the nodes along one
/// @cost O(edges + nodes log nodes), one call for each node and edge
/// @par Determinism among equally expensive paths the smaller ids win, from the last node backwards
template <BidirectionalGraph G, std::invocable<NodeId> NodeCost, std::invocable<EdgeId> EdgeCost>
[[nodiscard]] auto critical_path(const G& graph, const NodeCost& node_cost, const EdgeCost& edge_cost) {
  using Cost = std::remove_cvref_t<std::invoke_result_t<const NodeCost&, NodeId>>;
  static_assert(std::same_as<Cost, std::remove_cvref_t<std::invoke_result_t<const EdgeCost&, EdgeId>>>,
                "critical_path: nodes and edges must be costed in the same unit");
  std::vector<Cost> until(graph.node_count());
  std::vector<NodeId> before(graph.node_count(), NodeId::none());
  NodeId last = NodeId::none();
  for (const NodeId node : topological_order(graph)) {
    Cost arrival{};
    for (const EdgeId edge : graph.in_edges(node)) {
      const NodeId source = graph.source(edge);
      const Cost candidate = until[source.index()] + std::invoke(edge_cost, edge);
      NodeId& best = before[node.index()];
      if (!best.valid() || candidate > arrival || (candidate == arrival && source < best)) {
        arrival = candidate;
        best = source;
      }
    }
    until[node.index()] = arrival + std::invoke(node_cost, node);
    if (!last.valid() || until[node.index()] > until[last.index()] ||
        (until[node.index()] == until[last.index()] && node < last)) {
      last = node;
    }
  }
  CriticalPath<Cost> path;
  if (last.valid()) path.cost = until[last.index()];
  for (NodeId node = last; node.valid(); node = before[node.index()]) path.nodes.push_back(node);
  std::reverse(path.nodes.begin(), path.nodes.end());
  return path;
}

/// @brief The most expensive path when edges are free.
template <BidirectionalGraph G, std::invocable<NodeId> NodeCost>
[[nodiscard]] auto critical_path(const G& graph, const NodeCost& node_cost) {
  using Cost = std::remove_cvref_t<std::invoke_result_t<const NodeCost&, NodeId>>;
  return critical_path(graph, node_cost, [](EdgeId) { return Cost{}; });
}

}  // namespace autopar
