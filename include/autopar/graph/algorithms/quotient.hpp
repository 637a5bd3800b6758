#pragma once
#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/core/ids.hpp>
#include <autopar/graph/algorithms/cycle.hpp>
#include <autopar/graph/concepts.hpp>
#include <autopar/graph/graph.hpp>
#include <autopar/graph/iteration.hpp>
#include <autopar/graph/partition.hpp>

namespace autopar {

/// @brief A graph whose nodes are blocks of another graph's nodes. Node b holds the members of block b, ascending. An
/// edge holds the original edges between two blocks, ascending. Edges inside a block are dropped.
/// @invariant no self-loops, no parallel edges; out-edges ascend by target
using QuotientGraph = Graph<std::vector<NodeId>, std::vector<EdgeId>>;

/// @brief The node of a quotient graph that stands for a block.
[[nodiscard]] constexpr NodeId node_of(BlockId block) { return NodeId(block.value()); }

/// @brief Contracts each block of `partition` to one node; the result may have cycles.
/// @throws InvalidArgument if `partition` is not a partition of the nodes of `graph`
/// @cost O(nodes + edges + quotient edges log quotient edges)
template <DirectedGraph G>
[[nodiscard]] QuotientGraph contract(const G& graph, const Partition& partition) {
  require_partition_of(graph, partition);
  QuotientGraph quotient;
  quotient.reserve(partition.block_count(), 0);
  for (const BlockId block : id_range<BlockId>(partition.block_count())) quotient.add_node(partition.members(block));

  std::vector<std::vector<EdgeId>> edges_to(partition.block_count());
  std::vector<BlockId> targets;
  for (const BlockId block : id_range<BlockId>(partition.block_count())) {
    targets.clear();
    for (const NodeId node : partition.members(block)) {
      for (const EdgeId edge : graph.out_edges(node)) {
        const BlockId target = partition.block_of(graph.target(edge));
        if (target == block) continue;
        auto& edges = edges_to[target.index()];
        if (edges.empty()) targets.push_back(target);
        edges.push_back(edge);
      }
    }
    std::sort(targets.begin(), targets.end());
    for (const BlockId target : targets) {
      auto& edges = edges_to[target.index()];
      std::sort(edges.begin(), edges.end());
      quotient.add_edge(node_of(block), node_of(target), std::exchange(edges, {}));
    }
  }
  return quotient;
}

/// @brief The quotient of a graph by a partition whose blocks can run one after another.
/// @param name  the name of a node of `graph` in the error
/// @throws InvalidArgument if the partition does not fit the graph
/// @throws InvalidArgument if the quotient has a cycle, with its blocks and an edge from each to the next;
/// `acyclic_coarsening` repairs such a partition
/// @cost as `contract`
template <DirectedGraph G, class NodeName = NumberedNode>
[[nodiscard]] QuotientGraph quotient(const G& graph, const Partition& partition, const NodeName& name = {}) {
  QuotientGraph result = contract(graph, partition);
  if (const auto cycle = find_cycle(result)) {
    const auto block_name = [&](NodeId block) {
      const auto& members = result[block];
      return "block " + std::to_string(block.value()) + " (" + name(members.front()) +
             (members.size() > 1 ? " and " + std::to_string(members.size() - 1) + " more)" : ")");
    };
    throw InvalidArgument("the blocks of the partition depend on one another in a circle: " +
                          describe_cycle(*cycle, block_name) + "; merge them or cut elsewhere");
  }
  return result;
}

}  // namespace autopar
