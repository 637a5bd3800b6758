#pragma once
#include <cstddef>
#include <utility>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/graph/algorithms/topological_order.hpp>
#include <autopar/graph/concepts.hpp>
#include <autopar/graph/iteration.hpp>
#include <autopar/graph/node_set.hpp>

namespace autopar {

namespace detail {

/// `seeds` and all nodes that `neighbours` reaches from them.
template <class Neighbours>
[[nodiscard]] NodeSet flood(NodeSet seeds, const Neighbours& neighbours) {
  std::vector<NodeId> frontier(seeds.begin(), seeds.end());
  while (!frontier.empty()) {
    const NodeId node = frontier.back();
    frontier.pop_back();
    for (const NodeId neighbour : neighbours(node)) {
      if (seeds.insert(neighbour)) frontier.push_back(neighbour);
    }
  }
  return seeds;
}

}  // namespace detail

/// @brief `sources` and every node that a path from them leads to. O(nodes + edges), cycles allowed.
template <DirectedGraph G>
[[nodiscard]] NodeSet reachable_from(const G& graph, NodeSet sources) {
  return detail::flood(std::move(sources), [&](NodeId node) { return successors_of(graph, node); });
}

/// @brief `targets` and every node from which a path leads to them. O(nodes + edges), cycles allowed.
template <BidirectionalGraph G>
[[nodiscard]] NodeSet reaching(const G& graph, NodeSet targets) {
  return detail::flood(std::move(targets), [&](NodeId node) { return predecessors_of(graph, node); });
}

/// @brief Answers "does a path lead from a to b?" in O(1), for acyclic graphs of up to some ten thousand nodes.
///
/// @cost building O(nodes * edges / 64), memory nodes² / 8 bytes
class TransitiveClosure {
 public:
  /// @throws InvalidArgument if the graph has a cycle
  template <DirectedGraph G>
  explicit TransitiveClosure(const G& graph) : below_(graph.node_count(), NodeSet(graph.node_count())) {
    const auto order = topological_order(graph);
    for (auto node = order.rbegin(); node != order.rend(); ++node) {
      NodeSet& below = below_[node->index()];
      for (const NodeId successor : successors_of(graph, *node)) {
        if (below.insert(successor)) below |= below_[successor.index()];
      }
    }
  }

  /// @brief Whether a path of at least one edge leads from `from` to `to`. @pre both are nodes (unchecked)
  [[nodiscard]] bool reaches(NodeId from, NodeId to) const { return below_[from.index()].contains(to); }
  /// @brief All nodes that a path of at least one edge from `node` leads to.
  [[nodiscard]] const NodeSet& below(NodeId node) const { return below_[node.index()]; }

 private:
  std::vector<NodeSet> below_;
};

}  // namespace autopar
