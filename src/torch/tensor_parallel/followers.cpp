#include "torch/tensor_parallel/followers.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace autopar::tensor_parallel {

namespace {

class FollowerFinder {
 public:
  FollowerFinder(const OpGraph& graph, const algebra::BatchSemantics& plan,
                 const std::vector<TensorCandidate>& candidates)
      : graph_(graph), found_(candidates.size()) {
    LeafSlices leaves;
    for (std::size_t c = 0; c < candidates.size(); ++c) {
      leaves.insert(candidates[c].leaves.begin(), candidates[c].leaves.end());
      for (const auto op : candidates[c].ops) candidate_of_[op] = c;
      found_[c].leader = c;
    }
    ShardTyping typing(graph, [&](OpId op) { return plan.handling(op).in_stage; });
    layout_ = typing.run(
        leaves, [](ValueId) { return false; }, 2);
  }

  Followers find() && {
    for (const auto& [op, kernel] : layout_.in_slices) add(op);
    for (const auto& [op, moves] : layout_.before) {
      for (const auto& move : moves) add(op, move);
    }
    for (const auto& [value, slices] : layout_.gathered_after) {
      if (auto* follower = behind(value)) note(follower->brought, value);
    }
    Followers out{std::move(layout_), {}};
    for (auto& follower : found_) {
      if (!follower.ops.empty()) out.all.push_back(std::move(follower));
    }
    return out;
  }

 private:
  [[nodiscard]] bool is_sequence(ValueId value) const { return layout_.layouts[value.index()].is_sequence(); }

  /// The sequence-parallel region whose slices a value is in; null for other values.
  [[nodiscard]] Follower* behind(ValueId value) {
    const auto known = leader_of_.find(value);
    return known == leader_of_.end() ? nullptr : &found_[known->second];
  }

  void add(OpId op) {
    const auto candidate = candidate_of_.find(op);
    if (candidate != candidate_of_.end()) {
      for_each_output(graph_.op(op), [&](ValueId result) {
        if (!is_sequence(result)) return;
        auto& follower = found_[candidate->second];
        const auto tokens = layout_.layouts[result.index()].slices().units;
        follower.tokens = follower.sums.empty() ? tokens : std::min(follower.tokens, tokens);
        follower.sums.push_back(result);
        leader_of_[result] = candidate->second;
      });
      return;
    }
    Follower* last = nullptr;  // the last of the regions that it depends on
    for_each_input(graph_.op(op), [&](ValueId value) {
      auto* follower = behind(value);
      if (follower != nullptr && (last == nullptr || last->leader < follower->leader)) last = follower;
    });
    if (last == nullptr) return;
    last->ops.push_back(op);
    leader_of_op_[op] = last->leader;
    for_each_output(graph_.op(op), [&](ValueId result) {
      if (is_sequence(result)) leader_of_[result] = last->leader;
    });
  }

  void add(OpId op, const ShardedLayout::Move& move) {
    const auto own = leader_of_op_.find(op);
    switch (move.move) {
      case ir::ShardMove::kAssemble:
      case ir::ShardMove::kAllGather:
        if (auto* follower = behind(move.value)) {
          note(follower->brought, move.value);
          if (move.move == ir::ShardMove::kAssemble) note(follower->assembled, move.value);
        }
        return;
      case ir::ShardMove::kScatter:
        if (auto* follower = behind(move.value)) return note(follower->brought, move.value);
        if (own != leader_of_op_.end()) note(found_[own->second].spread, move.value);
        return;
      case ir::ShardMove::kCopy:
        if (own != leader_of_op_.end()) note(found_[own->second].copied, move.value);
        return;
      case ir::ShardMove::kAllReduce:
      case ir::ShardMove::kReduceScatter:
        return;
    }
  }

  static void note(std::vector<ValueId>& values, ValueId value) {
    if (std::ranges::find(values, value) == values.end()) values.push_back(value);
  }

  const OpGraph& graph_;
  std::vector<Follower> found_;  // by candidate
  std::map<OpId, std::size_t> candidate_of_, leader_of_op_;
  std::map<ValueId, std::size_t> leader_of_;
  ShardedLayout layout_;
};

}  // namespace

Followers find_followers(const OpGraph& graph, const algebra::BatchSemantics& plan,
                         const std::vector<TensorCandidate>& candidates) {
  return FollowerFinder(graph, plan, candidates).find();
}

}  // namespace autopar::tensor_parallel
