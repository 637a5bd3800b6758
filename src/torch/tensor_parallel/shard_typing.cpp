#include "torch/tensor_parallel/shard_typing.hpp"

#include <algorithm>
#include <utility>

#include "ops/registry.hpp"

namespace autopar::tensor_parallel {

ValueId leaf_behind(const OpGraph& graph, ValueId value) {
  while (value.valid() && !graph.value(value).is_leaf()) {
    const auto& node = graph.op(graph.value(value).definer);
    if (ops::definition_of(node.op).kind != OpKind::kCopy || node.inputs.empty()) return ValueId::none();
    value = node.inputs.front().values.front();
  }
  return value;
}

ShardTyping::ShardTyping(const OpGraph& graph, std::function<bool(OpId)> is_member)
    : graph_(graph),
      is_member_(std::move(is_member)),
      uses_(graph.uses()),
      is_output_(graph.values.size(), false),
      rules_(graph) {
  for (const auto output : graph.outputs) is_output_[output.index()] = true;
}

ShardedLayout ShardTyping::run(const LeafSlices& leaves, const std::function<bool(ValueId)>& may_slice,
                               int sequence_shards) {
  ShardedLayout out{.leaves = leaves};
  do {
    out = ShardedLayout{.leaves = std::move(out.leaves), .layouts = std::vector<TensorLayout>(graph_.values.size())};
  } while (!pass(out, may_slice, sequence_shards));
  if (out.stale.valid() && sequence_shards > 1) return run(leaves, may_slice);
  find_leaving(out);
  return out;
}

bool ShardTyping::pass(ShardedLayout& out, const std::function<bool(ValueId)>& may_slice, int sequence_shards) {
  std::set<OpId> waiting;
  const auto lay = [&](ValueId value, const TensorLayout& layout) {
    out.layouts[value.index()] = layout;
    if (!layout.is_sharded()) return;
    for (const auto use : uses_[value.index()]) {
      if (is_member_(use)) waiting.insert(use);
    }
  };
  for (const auto& [leaf, slices] : out.leaves) lay(leaf, TensorLayout::sharded(slices));
  while (!waiting.empty()) {
    const auto op = *waiting.begin();
    waiting.erase(waiting.begin());
    const auto rule = rules_(out.layouts, op);
    if (!take_operands(out, op, rule, may_slice)) return false;
    if (!rule.in_slices) continue;
    out.in_slices[op] = rule.kernel;
    std::size_t k = 0;
    for_each_output(graph_.op(op), [&](ValueId result) {
      const auto& layout = rule.results[k++];
      if (layout.is_partial()) {
        out.sums.insert(result);
        const auto tokens = sequence_slices(graph_.value(result).sizes);
        if (sequence_shards > 1 && tokens && tokens->units >= sequence_shards)
          lay(result, TensorLayout::sequence(*tokens));
      } else {
        lay(result, layout);
      }
    });
  }
  return true;
}

bool ShardTyping::take_operands(ShardedLayout& out, OpId op, const ShardedOp& rule,
                                const std::function<bool(ValueId)>& may_slice) {
  const auto& node = graph_.op(op);
  auto& moves = out.before[op];
  const auto add = [&](const ShardedLayout::Move& move) {
    if (std::ranges::find(moves, move) == moves.end()) moves.push_back(move);
  };
  bool complete = true;
  for_each_input(node, [&](ValueId value) {
    const auto& layout = out.layouts[value.index()];
    const auto needed = rule.needs.find(value);
    if (!rule.in_slices) {
      if (!layout.is_sharded()) return;
      add({ir::ShardMove::kAllGather, value, layout.slices()});
      out.conflicts.push_back(value);
      const auto& results = node.writes;
      const auto storage = graph_.value(value).storage;
      if (storage.valid() && std::ranges::find(results, storage) != results.end()) out.stale = value;
    } else if (needed == rule.needs.end()) {
      const auto kind = ops::definition_of(node.op).kind;
      const bool lends_sizes = kind == OpKind::kReshape || kind == OpKind::kExpand;
      if (lends_sizes) return;
      if (layout.is_sharded()) return add({ir::ShardMove::kAssemble, value, layout.slices()});
      const bool is_bias = rule.kernel == ShardedOp::Kernel::kBiasOnce;
      if (is_bias || !node.grad_enabled || !graph_.value(value).has_gradient()) return;
      add({ir::ShardMove::kCopy, value});
    } else if (!layout.is_sharded() || layout.slices() != needed->second) {
      const auto leaf = leaf_behind(graph_, value);
      if (leaf.valid() && may_slice(leaf)) {
        complete = complete && !out.leaves.emplace(leaf, needed->second).second;
        return;
      }
      add({ir::ShardMove::kScatter, value, needed->second});
      const bool is_of_parts = needed->second.inner.size() > 1;
      if (is_of_parts || graph_.value(value).has_gradient()) out.conflicts.push_back(value);
    }
  });
  return complete;
}

// A value that only the shards' operators read stays in slices.
void ShardTyping::find_leaving(ShardedLayout& out) const {
  for (const auto& [op, kernel] : out.in_slices) {
    for_each_output(graph_.op(op), [&](ValueId result) {
      const auto& layout = out.layouts[result.index()];
      if (!layout.is_sharded()) return;
      const auto& uses = uses_[result.index()];
      const bool leaves =
          is_output_[result.index()] || std::ranges::any_of(uses, [&](OpId use) { return !is_member_(use); });
      if (!leaves) return;
      out.gathered_after[result] = layout.slices();
      out.conflicts.push_back(result);
    });
  }
  std::erase_if(out.before, [](const auto& item) { return item.second.empty(); });
}

}  // namespace autopar::tensor_parallel
