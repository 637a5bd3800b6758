#pragma once
#include <type_traits>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>
#include <autopar/graph/concepts.hpp>
#include <autopar/graph/iteration.hpp>
#include <autopar/graph/partition.hpp>

namespace autopar {

/// @brief The total cost of each block, by block id.
/// @throws InvalidArgument if `partition` is not one of the nodes of `graph`
/// @cost O(nodes)
template <WeightedGraph G>
[[nodiscard]] auto block_costs(const G& graph, const Partition& partition) {
  using Cost = std::remove_cvref_t<decltype(graph.cost(NodeId{}))>;
  require_partition_of(graph, partition);
  std::vector<Cost> costs(partition.block_count());
  for (const NodeId node : nodes_of(graph)) {
    Cost& cost = costs[partition.block_of(node).index()];
    cost = cost + graph.cost(node);
  }
  return costs;
}

/// @brief The bytes of all edges between different blocks.
/// @throws InvalidArgument if `partition` is not one of the nodes of `graph`
/// @cost O(nodes + edges)
template <WeightedGraph G>
[[nodiscard]] Bytes cut_bytes(const G& graph, const Partition& partition) {
  require_partition_of(graph, partition);
  Bytes total{};
  for (const NodeId node : nodes_of(graph)) {
    for (const EdgeId edge : graph.out_edges(node)) {
      if (partition.block_of(node) != partition.block_of(graph.target(edge))) total += graph.bytes(edge);
    }
  }
  return total;
}

}  // namespace autopar
