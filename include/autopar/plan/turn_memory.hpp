#pragma once

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>
#include <autopar/plan/savings.hpp>
#include <autopar/plan/workload.hpp>
#include <autopar/schedule/kind.hpp>

namespace autopar {

/// What one micro-batch takes of a stage's memory. A stage runs its nodes in their order in the captured graph, and
/// their backwards in the reverse order: while a node works, those behind it keep nothing yet, or nothing any more.
struct TurnMemory {
  Bytes kept{};     ///< from the forward until the backward
  Bytes put_off{};  ///< of a backward in two parts, from the first until the second
  Bytes work{};     ///< beside `kept`, of the node that takes most when it works

  /// Nodes of the captured graph that take it, from the first to the last.
  NodeId first{std::numeric_limits<std::int32_t>::max()}, last{-1};

  /// Of a node that runs once.
  [[nodiscard]] static TurnMemory of(const WorkNode& node, const NodeCost& cost, ScheduleKind schedule) {
    const bool parts = !keeps_backwards_whole(schedule);
    return {cost.saved, parts ? cost.put_off : Bytes(0), cost.workspace, node.members.front(), node.members.back()};
  }

  /// Both. Where some of one's nodes come between the other's, or where the first part of a backward leaves what the
  /// second needs, all that both keep is there while either works.
  [[nodiscard]] TurnMemory with(const TurnMemory& next, ScheduleKind schedule) const {
    const bool in_turn = last < next.first && keeps_backwards_whole(schedule);
    return {kept + next.kept, put_off + next.put_off, std::max(in_turn ? work - next.kept : work, next.work),
            std::min(first, next.first), std::max(last, next.last)};
  }
};

namespace detail {

/// What one micro-batch takes of a stage, as more and more of its segments are run again.
class StageTurn {
 public:
  /// @param nodes  of the stage, ascending
  /// @param costs  of all nodes, for the stage's share
  StageTurn(const Workload& work, const std::vector<NodeId>& nodes, const std::vector<NodeCost>& costs,
            ScheduleKind schedule)
      : nodes_(&nodes), costs_(&costs), schedule_(schedule), leaves_(std::bit_ceil(nodes.size())) {
    tree_.resize(2 * leaves_);
    for (std::size_t i = 0; i < nodes.size(); ++i)
      tree_[leaves_ + i] = TurnMemory::of(work.graph[nodes[i]], costs[nodes[i].index()], schedule);
    for (std::size_t at = leaves_; at-- > 1;) join(at);
  }

  /// The piece keeps what enters and what leaves it. When its backward comes, its nodes fill up with what they keep,
  /// and nothing of it is put off.
  void run_again(const SegmentPiece& piece) {
    Bytes outside = piece.entering + piece.leaving, inside{};
    for (const NodeId node : piece.nodes) {
      const auto place = std::lower_bound(nodes_->begin(), nodes_->end(), node) - nodes_->begin();
      const NodeCost& cost = (*costs_)[node.index()];
      inside += cost.saved;
      TurnMemory& leaf = tree_[leaves_ + static_cast<std::size_t>(place)];
      leaf.kept = std::exchange(outside, Bytes(0));
      leaf.put_off = Bytes(0);
      leaf.work = inside + cost.workspace;
      for (std::size_t at = (leaves_ + static_cast<std::size_t>(place)) / 2; at > 0; at /= 2) join(at);
    }
  }

  [[nodiscard]] const TurnMemory& memory() const { return tree_[1]; }

 private:
  void join(std::size_t at) { tree_[at] = tree_[2 * at].with(tree_[2 * at + 1], schedule_); }

  const std::vector<NodeId>* nodes_;
  const std::vector<NodeCost>* costs_;
  ScheduleKind schedule_;
  std::size_t leaves_;
  std::vector<TurnMemory> tree_;  // the root is 1, the children of i are 2 i and 2 i + 1
};

}  // namespace detail

}  // namespace autopar
