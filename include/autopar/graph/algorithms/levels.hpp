#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/graph/algorithms/topological_order.hpp>
#include <autopar/graph/concepts.hpp>
#include <autopar/graph/iteration.hpp>

namespace autopar {

/// @brief The number of edges on the longest path that ends at each node.
/// @return by node id; 0 for nodes without predecessors
/// @throws InvalidArgument if the graph has a cycle, naming the nodes along one
/// @cost O(edges + nodes log nodes)
template <DirectedGraph G>
[[nodiscard]] std::vector<std::size_t> levels(const G& graph) {
  std::vector<std::size_t> level(graph.node_count(), 0);
  for (const NodeId node : topological_order(graph)) {
    for (const NodeId successor : successors_of(graph, node)) {
      level[successor.index()] = std::max(level[successor.index()], level[node.index()] + 1);
    }
  }
  return level;
}

}  // namespace autopar
