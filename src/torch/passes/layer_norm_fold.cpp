#include "torch/passes/layer_norm_fold.hpp"

#include <string>
#include <utility>
#include <vector>

#include "capture/ir/add_layer_norm.hpp"
#include "ops/names.hpp"
#include "ops/registry.hpp"
#include "torch/fused/fused_ops.hpp"
#include "torch/passes/compact.hpp"
#include "torch/passes/value_uses.hpp"

namespace autopar::passes {
namespace {

/// Arguments of aten::layer_norm.
enum LayerNormArgument : std::int32_t { kNormInput, kNormShape, kNormWeight, kNormBias, kNormEps, kNormCudnn };

/// Arguments of aten::dropout.
enum DropoutArgument : std::int32_t { kDropoutInput, kDropoutP, kDropoutTrain };

/// A sum and the norm that reads it first.
struct NormOfSum {
  OpId sum, norm;
  OpId dropout = OpId::none();  ///< that makes one addend, for the sum alone
};

bool is_sum_of_alike(const OpGraph& graph, OpId op) {
  if (!graph.is(op, ops::kAdd) || graph.overload(op) != "Tensor" || !graph.op(op).integers.empty()) return false;
  const auto left = graph.input(op, 0), right = graph.input(op, 1), made = graph.output(op);
  const auto& factor = graph.op(op).args[2];
  if (!left.valid() || !right.valid() || !factor.isInt() || factor.toInt() != 1) return false;
  const auto is_like_result = [&](ValueId value) {
    return graph.value(value).sizes == graph.value(made).sizes && graph.value(value).dtype == graph.value(made).dtype;
  };
  return is_like_result(left) && is_like_result(right);
}

/// Over the last dim, with weight and bias.
bool is_norm_of_rows(const OpGraph& graph, OpId op) {
  if (!graph.is(op, ops::kLayerNorm) || !graph.op(op).integers.empty()) return false;
  const auto& shape = graph.op(op).args[kNormShape];
  return shape.isIntList() && shape.toIntList().size() == 1 && graph.input(op, kNormWeight).valid() &&
         graph.input(op, kNormBias).valid() &&
         graph.value(graph.input(op, kNormInput)).dtype == graph.value(graph.output(op)).dtype;
}

/// Whether the sum may be made where the norm is.
bool sum_may_wait(const OpGraph& graph, const ValueUses& uses, const NormOfSum& found) {
  return !uses.touched_between(graph.output(found.sum), found.sum, found.norm) &&
         !uses.written_between(graph.input(found.sum, 0), found.sum, found.norm) &&
         !uses.written_between(graph.input(found.sum, 1), found.sum, found.norm);
}

/// Whether it drops some elements, for this sum alone, and may do so where the norm is.
bool drops_for(const OpGraph& graph, const ValueUses& uses, OpId op, const NormOfSum& found) {
  if (!op.valid() || !graph.is(op, ops::kDropout) || !graph.op(op).is_random) return false;
  const auto &p = graph.op(op).args[kDropoutP], &train = graph.op(op).args[kDropoutTrain];
  const bool drops_some = train.isBool() && train.toBool() && p.isDouble() && p.toDouble() > 0 && p.toDouble() < 1;
  return drops_some && graph.op(op).integers.empty() &&
         graph.op(op).grad_enabled == graph.op(found.norm).grad_enabled &&
         uses.only_use(graph.output(op)) == found.sum && graph.input(found.sum, 0) != graph.input(found.sum, 1) &&
         !uses.written_between(graph.input(op, kDropoutInput), op, found.norm);
}

/// The dropout that makes the first addend, else that of the second; none if neither is one.
OpId dropout_of(const OpGraph& graph, const ValueUses& uses, const NormOfSum& found) {
  for (const int addend : {0, 1}) {
    const auto definer = graph.value(graph.input(found.sum, addend)).definer;
    if (drops_for(graph, uses, definer, found)) return definer;
  }
  return OpId::none();
}

std::vector<NormOfSum> norms_of_sums(const OpGraph& graph) {
  const ValueUses uses(graph);
  std::vector<bool> taken(graph.ops.size(), false);
  std::vector<NormOfSum> all;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const auto norm = OpId::of(i);
    if (!is_norm_of_rows(graph, norm)) continue;
    const auto sum = graph.value(graph.input(norm, kNormInput)).definer;
    if (!sum.valid() || taken[sum.index()] || !is_sum_of_alike(graph, sum)) continue;
    if (graph.op(sum).grad_enabled != graph.op(norm).grad_enabled || !sum_may_wait(graph, uses, {sum, norm})) continue;
    taken[sum.index()] = true;
    all.push_back({sum, norm, dropout_of(graph, uses, {sum, norm})});
  }
  return all;
}

OpNode joined_norm(const OpGraph& graph, const NormOfSum& found) {
  using Argument = AddLayerNormArgument;
  static const auto op = fused_operator(kAddLayerNorm);
  const auto &sum = graph.op(found.sum), &norm = graph.op(found.norm);
  OpNode node{op, std::vector<c10::IValue>(Argument::kCount)};
  node.args[Argument::kShape] = norm.args[kNormShape];
  node.args[Argument::kEps] = norm.args[kNormEps];
  node.args[Argument::kCudnnEnable] = norm.args[kNormCudnn];
  node.args[Argument::kP] = found.dropout.valid() ? graph.op(found.dropout).args[kDropoutP] : 0.0;
  const auto take = [&](std::int32_t position, ValueId value) {
    node.inputs.push_back({position, SlotKind::kTensor, {value}});
    node.reads.push_back(graph.value(value).storage);
  };
  const bool drops = found.dropout.valid();
  const int dropped = drops && graph.input(found.sum, 1) == graph.output(found.dropout) ? 1 : 0;
  take(Argument::kInput, drops ? graph.input(found.dropout, kDropoutInput) : graph.input(found.sum, dropped));
  take(Argument::kResidual, graph.input(found.sum, 1 - dropped));
  take(Argument::kWeight, graph.input(found.norm, kNormWeight));
  take(Argument::kBias, graph.input(found.norm, kNormBias));
  sort_storages(node.reads);
  node.outputs = {{0, SlotKind::kTensor, {graph.output(found.sum)}},
                  {1, SlotKind::kTensor, {graph.output(found.norm)}}};
  node.writes = sum.writes;
  node.writes.insert(node.writes.end(), norm.writes.begin(), norm.writes.end());
  sort_storages(node.writes);
  node.grad_enabled = norm.grad_enabled;
  node.is_random = drops;
  node.path = norm.path;
  return node;
}

}  // namespace

OpGraph fold_layer_norms(OpGraph graph) {
  const auto found = norms_of_sums(graph);
  if (found.empty()) return graph;
  std::vector<bool> removed(graph.ops.size(), false);
  for (const auto& each : found) {
    auto node = joined_norm(graph, each);
    graph.value(graph.output(each.sum)).definer = each.norm;
    graph.op(each.norm) = std::move(node);
    removed[each.sum.index()] = true;
    if (each.dropout.valid()) removed[each.dropout.index()] = true;
  }
  compact(graph, removed);
  order_values(graph);
  return graph;
}

}  // namespace autopar::passes
