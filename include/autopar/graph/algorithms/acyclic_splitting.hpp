#pragma once
#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/core/ids.hpp>
#include <autopar/graph/algorithms/topological_order.hpp>
#include <autopar/graph/concepts.hpp>
#include <autopar/graph/iteration.hpp>

namespace autopar {

namespace detail {

/// Adds nodes to parts one by one and maintains a topological order of the parts' quotient.
/// @source Pearce and Kelly, A dynamic topological sort algorithm for directed acyclic graphs, JEA 11, 2007
template <BidirectionalGraph G>
class GrowingParts {
 public:
  explicit GrowingParts(const G& graph) : graph_(graph), part_of_(graph.node_count(), kNone) {}

  /// Starts a part with `node`.
  /// @pre all predecessors of `node` are in parts
  void open(NodeId node) {
    part_of_[node.index()] = members_.size();
    position_.push_back(order_.size());
    order_.push_back(members_.size());
    members_.push_back({node});
  }
  /// Adds `node` to a part unless the quotient would get a cycle.
  /// @return whether it was added
  [[nodiscard]] bool join(NodeId node, std::size_t part) {
    std::size_t last = position_[part];
    for (const NodeId before : predecessors_of(graph_, node))
      last = std::max(last, position_[part_of_[before.index()]]);
    if (last > position_[part]) {
      const auto follows = followers(part, last);
      for (const NodeId before : predecessors_of(graph_, node)) {
        const std::size_t of_before = part_of_[before.index()];
        if (of_before != part && follows[of_before]) return false;
      }
      move_behind(last, position_[part], follows);
    }
    part_of_[node.index()] = part;
    members_[part].push_back(node);
    return true;
  }
  [[nodiscard]] std::size_t latest() const { return members_.size() - 1; }
  [[nodiscard]] std::vector<std::vector<NodeId>> in_order() && {
    std::vector<std::vector<NodeId>> out;
    for (const std::size_t part : order_) out.push_back(std::move(members_[part]));
    return out;
  }

 private:
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  /// By part: whether it is `part` or depends on it, among parts up to position `last`.
  [[nodiscard]] std::vector<bool> followers(std::size_t part, std::size_t last) const {
    std::vector<bool> found(members_.size(), false);
    std::vector<std::size_t> pending{part};
    found[part] = true;
    while (!pending.empty()) {
      const std::size_t now = pending.back();
      pending.pop_back();
      for (const NodeId member : members_[now]) {
        for (const NodeId after : successors_of(graph_, member)) {
          const std::size_t next = part_of_[after.index()];
          if (next == kNone || found[next] || position_[next] > last) continue;
          found[next] = true;
          pending.push_back(next);
        }
      }
    }
    return found;
  }

  void move_behind(std::size_t last, std::size_t first, const std::vector<bool>& moved) {
    const auto at = [&](std::size_t position) { return order_.begin() + static_cast<std::ptrdiff_t>(position); };
    std::stable_partition(at(first), at(last + 1), [&](std::size_t part) { return !moved[part]; });
    for (std::size_t i = first; i <= last; ++i) position_[order_[i]] = i;
  }

  const G& graph_;
  std::vector<std::size_t> part_of_;  // by node
  std::vector<std::vector<NodeId>> members_;
  std::vector<std::size_t> order_;     // parts
  std::vector<std::size_t> position_;  // by part
};

}  // namespace detail

/// @brief Splits groups of nodes where needed so that each part can run without interruption.
///
/// The parts have an acyclic quotient, so every part is convex. A node joins the earlier nodes of its group unless that
/// closes a cycle. Groups with an acyclic quotient are not split.
///
/// @param group_of  by node; nodes of one group >= 0 may be together, nodes of group -1 are alone
/// @return parts in a topological order of their quotient, their nodes in the graph's topological order
/// @throws InvalidArgument if the graph has a cycle, or `group_of` does not have one entry for each node
/// @cost O(edges + nodes log nodes) if groups have an acyclic quotient; O(nodes + edges) more for each node whose group
/// is moved or split
template <BidirectionalGraph G>
[[nodiscard]] std::vector<std::vector<NodeId>> acyclic_splitting(const G& graph, const std::vector<int>& group_of) {
  if (group_of.size() != graph.node_count()) {
    throw InvalidArgument("acyclic_splitting: " + std::to_string(group_of.size()) +
                          " groups are given for a graph of " + std::to_string(graph.node_count()) + " nodes");
  }
  detail::GrowingParts<G> parts(graph);
  std::vector<std::pair<bool, std::size_t>> part_of_group;  // whether the group has a part, and its latest part
  for (const NodeId node : topological_order(graph)) {
    const int group = group_of[node.index()];
    if (group < 0) {
      parts.open(node);
      continue;
    }
    const auto at = static_cast<std::size_t>(group);
    if (at >= part_of_group.size()) part_of_group.resize(at + 1);
    auto& [exists, part] = part_of_group[at];
    if (exists && parts.join(node, part)) continue;
    parts.open(node);
    exists = true;
    part = parts.latest();
  }
  return std::move(parts).in_order();
}

}  // namespace autopar
