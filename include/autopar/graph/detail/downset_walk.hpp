#pragma once
#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/graph/algorithms/topological_order.hpp>
#include <autopar/graph/concepts.hpp>
#include <autopar/graph/iteration.hpp>

namespace autopar::detail {

/// @brief Visits every downset of an acyclic graph once; only one is in memory at a time.
///
/// Nodes are identified by their positions in a topological order. The last member of a downset is always maximal, so
/// removing it gives another downset: its parent. The downsets thus form a tree. A child of a downset appends an
/// available node beyond its last member. Taking the furthest child first visits subsets before supersets.
class DownsetWalk {
 public:
  /// @throws InvalidArgument if the graph has a cycle
  template <DirectedGraph G>
  explicit DownsetWalk(const G& graph) : order_(topological_order(graph)), missing_(order_.size(), 0) {
    const auto position = positions_in(graph, order_);
    first_successor_.reserve(order_.size() + 1);
    first_successor_.push_back(0);
    for (const NodeId node : order_) {
      for (const NodeId successor : successors_of(graph, node)) {
        successors_.push_back(position[successor.index()]);
        ++missing_[successors_.back()];
      }
      first_successor_.push_back(successors_.size());
    }
  }

  /// Visits the downsets. Call it once.
  /// @param limit  the largest number of downsets to visit
  /// @param visit  called as visit(parent number, position added, available positions ascending). Downsets are numbered
  /// in the order of the calls. The first, empty one has no parent: both numbers are 0.
  /// @return whether all were visited; false once it is certain that there are more than `limit`
  template <class Visit>
  [[nodiscard]] bool run(std::size_t limit, const Visit& visit) {
    for (std::size_t position = 0; position < missing_.size(); ++position) {
      if (missing_[position] == 0) available_.push_back(position);
    }
    if (!fits(available_.size(), limit)) return false;
    std::size_t count = 0;
    visit(0, 0, std::span<const std::size_t>(available_));
    frames_.push_back({count++, kNothing, 0, available_.size()});
    while (!frames_.empty()) {
      const Frame top = frames_.back();
      // Untried children are the entries before `next` that lie beyond the last member.
      if (top.next > top.begin && (top.added == kNothing || available_[top.next - 1] > top.added)) {
        const std::size_t added = available_[--frames_.back().next];
        if (count == limit || !append(top.begin, added, limit)) return false;
        const std::size_t begin = frames_.back().begin;
        visit(top.number, added, std::span<const std::size_t>(available_).subspan(begin));
        frames_.back().number = count++;
      } else {
        if (top.added != kNothing) {
          for (const std::size_t successor : successors(top.added)) ++missing_[successor];
        }
        available_.resize(top.begin);
        frames_.pop_back();
      }
    }
    return true;
  }

  /// @brief The node at each position.
  [[nodiscard]] const std::vector<NodeId>& order() const { return order_; }

 private:
  static constexpr std::size_t kNothing = static_cast<std::size_t>(-1);
  struct Frame {
    std::size_t number;  ///< of the downset
    std::size_t added;   ///< its last member
    std::size_t begin;   ///< its available positions start here in available_
    std::size_t next;    ///< children from here on were visited
  };

  /// Any subset of the available nodes can be added, so `available` of them mean at least 2^available downsets.
  [[nodiscard]] static bool fits(std::size_t available, std::size_t limit) {
    return available < 8 * sizeof(std::size_t) && (std::size_t{1} << available) <= limit;
  }
  [[nodiscard]] std::span<const std::size_t> successors(std::size_t position) const {
    return std::span(successors_)
        .subspan(first_successor_[position], first_successor_[position + 1] - first_successor_[position]);
  }

  /// Pushes the frame of a child. Its available positions are the parent's without `added`, and the positions that
  /// `added` enables.
  [[nodiscard]] bool append(std::size_t parent_begin, std::size_t added, std::size_t limit) {
    const std::size_t begin = available_.size();
    for (std::size_t i = parent_begin; i < begin; ++i) {
      if (available_[i] != added) available_.push_back(available_[i]);
    }
    for (const std::size_t successor : successors(added)) {
      if (--missing_[successor] == 0) available_.push_back(successor);
    }
    if (!fits(available_.size() - begin, limit)) return false;
    std::sort(available_.begin() + static_cast<std::ptrdiff_t>(begin), available_.end());
    frames_.push_back({0, added, begin, available_.size()});
    return true;
  }

  std::vector<NodeId> order_;
  std::vector<std::size_t> missing_;
  std::vector<std::size_t> first_successor_, successors_;
  std::vector<std::size_t> available_;
  std::vector<Frame> frames_;
};

}  // namespace autopar::detail
