#pragma once
#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/graph/concepts.hpp>
#include <autopar/graph/iteration.hpp>
#include <autopar/graph/partition.hpp>

namespace autopar {

/// @brief Partitions the nodes by mutual reachability: two nodes share a block if a path leads each way.
/// @return blocks in reverse topological order: an edge between blocks goes from a higher to a lower id
/// @cost O(nodes + edges), without recursion
/// @source Tarjan, Depth-first search and linear graph algorithms, SIAM J. Comput. 1(2), 1972
template <DirectedGraph G>
[[nodiscard]] Partition strongly_connected_components(const G& graph) {
  constexpr std::size_t kUnvisited = 0;
  const std::size_t nodes = graph.node_count();

  // A flat copy of the adjacency: resuming within a general range would need its iterators.
  std::vector<std::size_t> first(nodes + 1, 0);
  std::vector<NodeId> successors;
  successors.reserve(graph.edge_count());
  for (const NodeId node : nodes_of(graph)) {
    for (const NodeId successor : successors_of(graph, node)) successors.push_back(successor);
    first[node.index() + 1] = successors.size();
  }

  std::vector<std::size_t> next(first.begin(), first.end() - 1);
  std::vector<std::size_t> discovered(nodes, kUnvisited), low(nodes, 0);
  std::vector<BlockId> block_of(nodes, BlockId::none());
  std::vector<NodeId> path, open;
  std::size_t clock = 0, blocks = 0;
  const auto enter = [&](NodeId node) {
    discovered[node.index()] = low[node.index()] = ++clock;
    path.push_back(node);
    open.push_back(node);
  };
  const auto close = [&](NodeId root) {
    NodeId member;
    do {
      member = open.back();
      open.pop_back();
      block_of[member.index()] = BlockId::of(blocks);
    } while (member != root);
    ++blocks;
  };
  for (const NodeId root : nodes_of(graph)) {
    if (discovered[root.index()] == kUnvisited) enter(root);
    while (!path.empty()) {
      const NodeId node = path.back();
      if (next[node.index()] < first[node.index() + 1]) {
        const NodeId successor = successors[next[node.index()]++];
        if (discovered[successor.index()] == kUnvisited) {
          enter(successor);
        } else if (!block_of[successor.index()].valid()) {
          low[node.index()] = std::min(low[node.index()], discovered[successor.index()]);
        }
      } else {
        path.pop_back();
        if (!path.empty()) low[path.back().index()] = std::min(low[path.back().index()], low[node.index()]);
        if (low[node.index()] == discovered[node.index()]) close(node);
      }
    }
  }
  return Partition(std::move(block_of));
}

}  // namespace autopar
