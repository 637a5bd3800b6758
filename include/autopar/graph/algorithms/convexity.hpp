#pragma once
#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/core/ids.hpp>
#include <autopar/graph/algorithms/reachability.hpp>
#include <autopar/graph/algorithms/topological_order.hpp>
#include <autopar/graph/concepts.hpp>
#include <autopar/graph/iteration.hpp>
#include <autopar/graph/node_set.hpp>

namespace autopar {

/// @brief Tests many sets of one acyclic graph for convexity: no path leaves the set and returns to it.
///
/// A set can run as one unit (take all inputs, run, give all outputs) exactly if it is convex.
///
/// @invariant refers to the graph, which must outlive the tester and not change
/// @cost building O(edges + nodes log nodes). A test O(size of the set + edges of visited nodes). Visited nodes are
/// reachable from the set and lie between its first and last node in a topological order. So a narrow set in a huge
/// graph is cheap.
template <DirectedGraph G>
class ConvexityTester {
 public:
  /// @throws InvalidArgument if the graph has a cycle
  explicit ConvexityTester(const G& graph)
      : graph_(&graph), position_(positions_in(graph, topological_order(graph))), mark_(graph.node_count(), 0) {}
  explicit ConvexityTester(const G&& graph) = delete;

  /// @brief Whether `nodes` (any range of ids, repetitions allowed) is convex. The empty set is.
  /// @throws InvalidArgument if an id is not a node of the graph
  template <RangeOf<NodeId> Nodes>
  [[nodiscard]] bool operator()(const Nodes& nodes) {
    const Mark inside = next_mark();
    const Mark outside = inside + 1;
    std::size_t last = 0;
    for (const NodeId node : nodes) {
      if (node.index() >= mark_.size()) {
        throw InvalidArgument("ConvexityTester: node " + std::to_string(node.value()) + " is not one of the " +
                              std::to_string(mark_.size()) + " nodes of the graph");
      }
      mark_[node.index()] = inside;
      last = std::max(last, position_[node.index()]);
    }
    frontier_.clear();
    for (const NodeId node : nodes) visit_outside_successors(node, inside, outside, last);
    while (!frontier_.empty()) {
      const NodeId node = frontier_.back();
      frontier_.pop_back();
      if (visit_outside_successors(node, inside, outside, last)) return false;
    }
    return true;
  }

 private:
  using Mark = std::size_t;

  /// Queues the successors outside the set that can still lead back. @return whether a successor is inside
  bool visit_outside_successors(NodeId node, Mark inside, Mark outside, std::size_t last) {
    bool enters = false;
    for (const NodeId successor : successors_of(*graph_, node)) {
      Mark& mark = mark_[successor.index()];
      if (mark == inside) {
        enters = true;
      } else if (mark != outside && position_[successor.index()] < last) {
        mark = outside;
        frontier_.push_back(successor);
      }
    }
    return enters;
  }
  Mark next_mark() { return mark_count_ += 2; }

  const G* graph_;
  std::vector<std::size_t> position_;
  std::vector<Mark> mark_;
  std::vector<NodeId> frontier_;
  Mark mark_count_ = 0;
};

/// @brief Whether no path leaves `set` and returns to it, in any graph, including one with cycles. O(nodes + edges).
///
/// For many sets of one acyclic graph use ConvexityTester.
template <DirectedGraph G>
[[nodiscard]] bool is_convex(const G& graph, const NodeSet& set) {
  NodeSet left(graph.node_count());
  for (const NodeId node : set) {
    for (const NodeId successor : successors_of(graph, node)) {
      if (!set.contains(successor)) left.insert(successor);
    }
  }
  return !reachable_from(graph, std::move(left)).intersects(set);
}

/// @brief The smallest convex set that holds `set`: with two nodes all that lies on a path between them.
/// @cost O(nodes + edges)
template <BidirectionalGraph G>
[[nodiscard]] NodeSet convex_closure(const G& graph, const NodeSet& set) {
  return reachable_from(graph, set) & reaching(graph, set);
}

}  // namespace autopar
