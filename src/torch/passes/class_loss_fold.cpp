#include "torch/passes/class_loss_fold.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "capture/ir/compact.hpp"
#include "capture/ir/value_uses.hpp"
#include "ops/cross_entropy.hpp"
#include "ops/names.hpp"
#include "ops/registry.hpp"

namespace autopar::passes {
namespace {

/// Whether an operator is log_softmax over the class dim of a cross entropy, in the logits' type.
bool is_over_classes(const OpGraph& graph, OpId softmax) {
  if (!graph.is(softmax, ops::kLogSoftmax) || graph.overload(softmax) != "int") return false;
  const auto& node = graph.op(softmax);
  const auto &logits = graph.value(graph.input(softmax, 0)), &logs = graph.value(graph.output(softmax));
  const auto rank = static_cast<std::int64_t>(logits.sizes.size());
  if (rank < 2 || logits.dtype != logs.dtype || !node.integers.empty()) return false;
  const auto dim = node.args[1].toInt();
  return (dim < 0 ? dim + rank : dim) == 1;
}

/// The loss that is the log-probabilities' only reader; none if the only reader is no loss.
OpId loss_of(const OpGraph& graph, const ir::ValueUses& uses, OpId softmax) {
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

void fold(OpGraph& graph, OpId softmax, OpId loss) {
  static const auto cross_entropy = ops::operator_named(ops::kCrossEntropyLoss);
  const auto logits = graph.input(softmax, 0), logs = graph.output(softmax);
  auto& node = graph.op(loss);
  node.op = cross_entropy;
  node.args.emplace_back(0.0);  // label_smoothing
  node.inputs.front().values = {logits};
  std::erase(node.reads, graph.value(logs).storage);
  node.reads.push_back(graph.value(logits).storage);
  ir::sort_storages(node.reads);
}

}  // namespace

OpGraph fold_class_loss(OpGraph graph) {
  std::vector<std::pair<OpId, OpId>> found;
  {
    const ir::ValueUses uses(graph);
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
  ir::compact(graph, removed);
  return graph;
}

}  // namespace autopar::passes
