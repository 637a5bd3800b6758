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

/// Puts nodes into parts, one by one, and keeps the parts in a topological order of their quotient.
/// @source Pearce and Kelly, A dynamic topological sort algorithm for directed acyclic graphs, JEA 11, 2007
template <BidirectionalGraph G>
class GrowingParts {
 public:
  explicit GrowingParts(const G& graph) : graph_(graph), part_of_(graph.node_count(), kNone) {}

  /// @pre all predecessors of `node` are in parts
  void open(NodeId node) {
    part_of_[node.index()] = members_.size();
    position_.push_back(order_.size());
    order_.push_back(members_.size());
    members_.push_back({node});
  }
  /// Adds to a part unless the quotient would get a cycle.
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

  /// By part: the given one and what depends on it, up to a position.
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

/// @brief Groups of nodes, taken apart where they have to be so that each can run at a stretch.
///
/// The parts have an acyclic quotient, so every one of them is convex. A node stays with those of its group that come
/// before it unless that closes a circle; groups with an acyclic quotient stay whole.
///
/// @param group_of  by node; nodes of one group that is >= 0 may be together, nodes of group -1 are alone
/// @return parts in a topological order of their quotient, their nodes in the graph's
/// @throws InvalidArgument if the graph has a cycle, or groups are not given for all of its nodes
/// @cost O(edges + nodes log nodes) where groups have an acyclic quotient; O(nodes + edges) more for each node whose
/// group has to be moved or split
template <BidirectionalGraph G>
[[nodiscard]] std::vector<std::vector<NodeId>> acyclic_splitting(const G& graph, const std::vector<int>& group_of) {
  if (group_of.size() != graph.node_count()) {
    throw InvalidArgument("acyclic_splitting: " + std::to_string(group_of.size()) +
                          " groups are given for a graph of " + std::to_string(graph.node_count()) + " nodes");
  }
  detail::GrowingParts<G> parts(graph);
  std::vector<std::pair<bool, std::size_t>> part_of_group;  // whether there is one, the latest
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
