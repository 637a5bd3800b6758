#include "torch/passes/class_loss_fold.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "capture/ir/cross_entropy.hpp"
#include "ops/names.hpp"
#include "ops/registry.hpp"
#include "torch/fused/fused_ops.hpp"
#include "torch/passes/compact.hpp"
#include "torch/passes/value_uses.hpp"

namespace autopar::passes {
namespace {

/// log_softmax over what a cross entropy takes for classes, in the logits' own type.
bool is_over_classes(const OpGraph& graph, OpId softmax) {
  if (!graph.is(softmax, ops::kLogSoftmax) || graph.overload(softmax) != "int") return false;
  const auto& node = graph.op(softmax);
  const auto &logits = graph.value(graph.input(softmax, 0)), &logs = graph.value(graph.output(softmax));
  const auto rank = static_cast<std::int64_t>(logits.sizes.size());
  if (rank < 2 || logits.dtype != logs.dtype || !node.integers.empty()) return false;
  const auto dim = node.args[1].toInt();
  return (dim < 0 ? dim + rank : dim) == 1;
}

/// The loss that alone reads the log-probabilities; none if it is no such.
OpId loss_of(const OpGraph& graph, const ValueUses& uses, OpId softmax) {
  const auto logs = graph.output(softmax);
  const auto loss = uses.only_use(logs);
  if (!loss.valid()) return OpId::none();
  const bool is_loss =
      graph.is(loss, ops::kNllLossNd) || graph.is(loss, ops::kNllLoss) || graph.is(loss, ops::kNllLoss2d);
  if (!is_loss || graph.op(loss).grad_enabled != graph.op(softmax).grad_enabled) return OpId::none();
  const auto target = graph.input(loss, 1), weight = graph.input(loss, 2);
  const bool of_indices = c10::isIntegralType(graph.value(target).dtype, /*includeBool=*/false);
  const bool is_first = graph.input(loss, 0) == logs && weight != logs;
  const bool overwritten = uses.written_between(graph.input(softmax, 0), softmax, loss);
  return of_indices && is_first && !overwritten ? loss : OpId::none();
}

bool is_loss_of_rows(const OpGraph& graph, OpId op) {
  using Argument = CrossEntropyArgument;
  if (!graph.is(op, ops::kCrossEntropyLoss) || !graph.op(op).integers.empty()) return false;
  const auto logits = graph.input(op, Argument::kLogits), target = graph.input(op, Argument::kTarget),
             weight = graph.input(op, Argument::kWeight);
  const auto& smoothing = graph.op(op).args[Argument::kLabelSmoothing];
  if (!logits.valid() || !target.valid() || !smoothing.isDouble() || smoothing.toDouble() != 0) return false;
  const auto &of_logits = graph.value(logits), &of_target = graph.value(target);
  const bool of_rows = of_logits.dtype == at::kFloat && of_logits.sizes.size() == 2 && of_target.dtype == at::kLong &&
                       of_target.sizes.size() == 1;
  return of_rows &&
         (!weight.valid() || (graph.value(weight).dtype == at::kFloat && !graph.value(weight).has_gradient()));
}

/// The cast that makes single precision of 16 bits for this loss alone; none if the logits come from elsewhere.
OpId cast_before(const OpGraph& graph, const ValueUses& uses, OpId loss) {
  const auto logits = graph.input(loss, CrossEntropyArgument::kLogits);
  const auto cast = graph.value(logits).definer;
  if (!cast.valid() || uses.only_use(logits) != loss || graph.op(cast).grad_enabled != graph.op(loss).grad_enabled)
    return OpId::none();
  const auto& node = graph.op(cast);
  if (ops::definition_of(node.op).kind != OpKind::kCopy || node.inputs.size() != 1 ||
      node.inputs.front().kind != SlotKind::kTensor)
    return OpId::none();
  const auto from = node.inputs.front().values.front();
  const bool widens = c10::isReducedFloatingType(graph.value(from).dtype) &&
                      graph.value(from).sizes == graph.value(logits).sizes &&
                      graph.value(from).requires_grad == graph.value(logits).requires_grad;
  return widens && !uses.written_between(from, cast, loss) ? cast : OpId::none();
}

void fold(OpGraph& graph, OpId softmax, OpId loss) {
  static const auto cross_entropy = ops::operator_named(ops::kCrossEntropyLoss);
  const auto logits = graph.input(softmax, 0), logs = graph.output(softmax);
  auto& node = graph.op(loss);
  node.op = cross_entropy;
  node.args.emplace_back(0.0);  // label_smoothing
  node.inputs.front().values = {logits};
  std::erase(node.reads, graph.value(logs).storage);
  node.reads.push_back(graph.value(logits).storage);
  sort_storages(node.reads);
}

}  // namespace

OpGraph fold_class_loss(OpGraph graph) {
  std::vector<std::pair<OpId, OpId>> found;
  {
    const ValueUses uses(graph);
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
      if (!is_over_classes(graph, OpId::of(i))) continue;
      if (const auto loss = loss_of(graph, uses, OpId::of(i)); loss.valid()) found.emplace_back(OpId::of(i), loss);
    }
  }
  if (found.empty()) return graph;
  std::vector<bool> removed(graph.ops.size(), false);
  for (const auto& [softmax, loss] : found) {
    fold(graph, softmax, loss);
    removed[softmax.index()] = true;
  }
  compact(graph, removed);
  return graph;
}

OpGraph fold_class_loss_casts(OpGraph graph) {
  static const auto operation = fused_operator(kCrossEntropy);
  std::vector<std::pair<OpId, OpId>> found;  // losses and their casts
  {
    const ValueUses uses(graph);
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
      const auto loss = OpId::of(i);
      if (is_loss_of_rows(graph, loss)) found.emplace_back(loss, cast_before(graph, uses, loss));
    }
  }
  if (found.empty()) return graph;
  std::vector<bool> removed(graph.ops.size(), false);
  for (const auto& [loss, cast] : found) {
    auto& node = graph.op(loss);
    node.op = operation;
    if (!cast.valid()) continue;
    const auto from = graph.op(cast).inputs.front().values.front();
    const auto wide = graph.value(node.inputs.front().values.front()).storage;
    node.inputs.front().values = {from};
    std::ranges::replace(node.reads, wide, graph.value(from).storage);
    sort_storages(node.reads);
    removed[cast.index()] = true;
  }
  compact(graph, removed);
  return graph;
}

}  // namespace autopar::passes
