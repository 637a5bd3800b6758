#include "torch/passes/batch_norm_fold.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "capture/ir/batch_norm_relu.hpp"
#include "ops/names.hpp"
#include "ops/registry.hpp"
#include "torch/fused/fused_ops.hpp"
#include "torch/passes/compact.hpp"
#include "torch/passes/value_uses.hpp"

namespace autopar::passes {
namespace {

struct Norm {
  OpId norm, addition, relu;  ///< the last two may be none
  ValueId residual;           ///< none without an addition

  [[nodiscard]] OpId last() const { return relu.valid() ? relu : addition.valid() ? addition : norm; }
};

bool trains(const OpGraph& graph, OpId op) {
  return graph.is(op, ops::kBatchNorm) && graph.op(op).args[BatchNormArgument::kTraining].toBool() &&
         graph.op(op).integers.empty();
}

/// The op that alone reads the value and may be joined with the one that makes it; none if there is no such.
OpId next(const OpGraph& graph, const ValueUses& uses, OpId maker) {
  const auto reader = uses.only_use(graph.output(maker));
  const bool joins = reader.valid() && graph.op(reader).grad_enabled == graph.op(maker).grad_enabled &&
                     graph.op(reader).outputs.size() == 1;
  return joins ? reader : OpId::none();
}

/// What the op adds to `value`, of the same sizes; none if it does something else, or writes over what it adds.
ValueId added_to(const OpGraph& graph, OpId op, ValueId value) {
  const bool in_place = graph.is(op, ops::kAddInPlace);
  if ((!in_place && !graph.is(op, ops::kAdd)) || graph.overload(op) != "Tensor" || !graph.op(op).integers.empty())
    return ValueId::none();
  const auto& factor = graph.op(op).args[2];
  const auto left = graph.input(op, 0), right = graph.input(op, 1);
  if (!factor.isInt() || factor.toInt() != 1 || left == right || (in_place && left != value)) return ValueId::none();
  const auto other = left == value ? right : left;
  const auto &info = graph.value(value), &of_other = graph.value(other);
  return info.sizes == of_other.sizes && info.dtype == of_other.dtype ? other : ValueId::none();
}

/// Whether the norm may run where the last op is.
bool may_wait(const OpGraph& graph, const ValueUses& uses, const Norm& found) {
  for (const std::int32_t operand : {BatchNormArgument::kInput, BatchNormArgument::kWeight, BatchNormArgument::kBias}) {
    const auto value = graph.input(found.norm, operand);
    if (value.valid() && uses.written_between(value, found.norm, found.last())) return false;
  }
  if (found.residual.valid() && uses.written_between(found.residual, found.addition, found.last())) return false;
  for (const std::int32_t operand : {BatchNormArgument::kRunningMean, BatchNormArgument::kRunningVar}) {
    const auto value = graph.input(found.norm, operand);
    if (value.valid() && uses.touched_between(value, found.norm, found.last())) return false;
  }
  return true;
}

Norm with_addition(const OpGraph& graph, const ValueUses& uses, OpId norm) {
  Norm found{norm, OpId::none(), OpId::none(), ValueId::none()};
  if (const auto reader = next(graph, uses, norm); reader.valid()) {
    found.residual = added_to(graph, reader, graph.output(norm));
    if (found.residual.valid()) found.addition = reader;
  }
  return found;
}

/// The norm with what follows it, as far as that can be joined.
Norm norm_of(const OpGraph& graph, const ValueUses& uses, OpId norm, const std::vector<bool>& taken) {
  auto found = with_addition(graph, uses, norm);
  if (found.addition.valid() && (taken[found.addition.index()] || !may_wait(graph, uses, found)))
    found = {norm, OpId::none(), OpId::none(), ValueId::none()};
  const auto reader = next(graph, uses, found.last());
  if (!reader.valid() || (!graph.is(reader, ops::kRelu) && !graph.is(reader, ops::kReluInPlace))) return found;
  auto longer = found;
  longer.relu = reader;
  return may_wait(graph, uses, longer) ? longer : found;
}

OpNode joined_node(const OpGraph& graph, const Norm& found) {
  static const auto op = fused_operator(kBatchNormRelu);
  const auto &norm = graph.op(found.norm), &last = graph.op(found.last());
  OpNode node{op, norm.args};
  node.args.resize(BatchNormArgument::kCount);
  node.args[BatchNormArgument::kRelu] = found.relu.valid();
  node.inputs = norm.inputs;
  node.reads = norm.reads;
  if (found.residual.valid()) {
    node.inputs.push_back({BatchNormArgument::kResidual, SlotKind::kTensor, {found.residual}});
    node.reads.push_back(graph.value(found.residual).storage);
  }
  sort_storages(node.reads);
  node.outputs = last.outputs;
  node.writes = norm.writes;
  const auto made = graph.value(graph.output(found.norm)).storage,
             result = graph.value(graph.output(found.last())).storage;
  std::ranges::replace(node.writes, made, result);
  sort_storages(node.writes);
  node.grad_enabled = norm.grad_enabled;
  node.path = norm.path;
  return node;
}

}  // namespace

OpGraph fold_batch_norms(OpGraph graph) {
  std::vector<Norm> norms;
  std::vector<bool> removed(graph.ops.size(), false);
  {
    const ValueUses uses(graph);
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
      if (!trains(graph, OpId::of(i))) continue;
      norms.push_back(norm_of(graph, uses, OpId::of(i), removed));
      for (const auto op : {norms.back().norm, norms.back().addition, norms.back().relu}) {
        if (op.valid()) removed[op.index()] = true;
      }
    }
  }
  if (norms.empty()) return graph;
  for (const auto& found : norms) {
    auto node = joined_node(graph, found);
    graph.value(graph.output(found.last())).previous = ValueId::none();
    graph.op(found.last()) = std::move(node);
    removed[found.last().index()] = false;
  }
  compact(graph, removed);
  order_values(graph);
  return graph;
}

}  // namespace autopar::passes
