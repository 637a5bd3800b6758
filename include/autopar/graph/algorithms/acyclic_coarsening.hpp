#pragma once
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/core/ids.hpp>
#include <autopar/graph/algorithms/quotient.hpp>
#include <autopar/graph/algorithms/strongly_connected_components.hpp>
#include <autopar/graph/algorithms/topological_order.hpp>
#include <autopar/graph/concepts.hpp>
#include <autopar/graph/detail/disjoint_sets.hpp>
#include <autopar/graph/iteration.hpp>
#include <autopar/graph/partition.hpp>

namespace autopar {

/// @brief The finest partition that `partition` refines and whose quotient is acyclic.
///
/// Only blocks that lie on a cycle of the quotient are merged. Every coarser partition with an acyclic quotient must
/// merge them, too. All blocks of the result are convex.
///
/// @return blocks in the smallest topological order of their quotient, ties broken by smallest member
/// @throws InvalidArgument if `partition` is not a partition of the nodes of `graph`
/// @cost O((nodes + edges) log(nodes + edges)); the graph itself may have cycles
template <DirectedGraph G>
[[nodiscard]] Partition acyclic_coarsening(const G& graph, const Partition& partition) {
  const Partition circles = strongly_connected_components(contract(graph, partition));

  // Merge, number by smallest member, then renumber in topological order.
  detail::DisjointSets merged(graph.node_count());
  for (const BlockId circle : id_range<BlockId>(circles.block_count())) {
    const NodeId anchor = partition.members(BlockId(circles.members(circle).front().value())).front();
    for (const NodeId block : circles.members(circle)) {
      for (const NodeId member : partition.members(BlockId(block.value()))) merged.unite(anchor, member);
    }
  }
  const Partition by_smallest = merged.partition();
  const auto order = topological_order(contract(graph, by_smallest));
  std::vector<BlockId> rank(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) rank[order[i].index()] = BlockId::of(i);

  std::vector<BlockId> block_of;
  block_of.reserve(graph.node_count());
  for (const NodeId node : nodes_of(graph)) block_of.push_back(rank[by_smallest.block_of(node).index()]);
  return Partition(std::move(block_of));
}

/// @brief The finest partition with an acyclic quotient in which the nodes of each group stay together.
/// @param groups  nodes that must not be separated; groups that share a node are merged; other nodes start alone
/// @throws InvalidArgument if a group names a node that the graph does not have
/// @cost as the overload with a Partition
template <DirectedGraph G>
[[nodiscard]] Partition acyclic_coarsening(const G& graph, const std::vector<std::vector<NodeId>>& groups) {
  detail::DisjointSets together(graph.node_count());
  for (const auto& group : groups) {
    for (const NodeId node : group) {
      if (node.index() >= graph.node_count()) {
        throw InvalidArgument("acyclic_coarsening: a group names node " + std::to_string(node.value()) +
                              ", but the graph has " + std::to_string(graph.node_count()) + " nodes");
      }
      together.unite(group.front(), node);
    }
  }
  return acyclic_coarsening(graph, together.partition());
}

}  // namespace autopar
