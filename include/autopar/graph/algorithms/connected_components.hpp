#pragma once
#include <cstddef>
#include <utility>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/graph/concepts.hpp>
#include <autopar/graph/detail/disjoint_sets.hpp>
#include <autopar/graph/iteration.hpp>
#include <autopar/graph/partition.hpp>

namespace autopar {

/// @brief Partitions the nodes by connection, whatever the direction of the edges.
/// @return blocks numbered by their smallest nodes
/// @cost O((nodes + edges) α(nodes))
template <DirectedGraph G>
[[nodiscard]] Partition connected_components(const G& graph) {
  detail::DisjointSets sets(graph.node_count());
  for (const NodeId node : nodes_of(graph)) {
    for (const NodeId successor : successors_of(graph, node)) sets.unite(node, successor);
  }
  return sets.partition();
}

}  // namespace autopar
