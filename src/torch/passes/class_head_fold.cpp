#include "torch/passes/class_head_fold.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "capture/ir/class_head.hpp"
#include "capture/ir/cross_entropy.hpp"
#include "ops/names.hpp"
#include "ops/registry.hpp"
#include "torch/fused/class_loss.hpp"
#include "torch/fused/fused_ops.hpp"
#include "torch/passes/compact.hpp"
#include "torch/passes/value_uses.hpp"

namespace autopar::passes {
namespace {

using LossArgument = CrossEntropyArgument;

struct Head {
  OpId linear, loss;
  std::vector<OpId> between;  ///< from the loss up
  bool reshapes = false;
};

bool is_loss_of_indices(const OpGraph& graph, OpId op) {
  const auto& def = ops::definition_of(graph.op(op).op);
  if (!def.makes_class_loss || def.layer || !graph.op(op).integers.empty()) return false;
  const bool widens = widens_logits(graph.op(op).op);
  const auto logits = graph.input(op, LossArgument::kLogits), target = graph.input(op, LossArgument::kTarget),
             weight = graph.input(op, LossArgument::kWeight);
  if (!logits.valid() || !target.valid() || graph.value(logits).sizes.size() != 2) return false;
  const auto type = graph.value(logits).dtype;
  const bool is_wide = widens || type == at::kFloat || type == at::kDouble;
  const bool of_indices = c10::isIntegralType(graph.value(target).dtype, /*includeBool=*/false);
  const bool trains_weight = weight.valid() && graph.value(weight).has_gradient();
  return is_wide && of_indices && !trains_weight && graph.value(target).sizes.size() == 1;
}

/// Whether it gives each row of classes its place among others, or another type, and nothing else.
bool keeps_rows(const OpGraph& graph, OpId op) {
  const auto& node = graph.op(op);
  if (node.inputs.size() != 1 || node.inputs.front().kind != SlotKind::kTensor || node.outputs.size() != 1)
    return false;
  const auto &from = graph.value(graph.input(op, 0)), &to = graph.value(graph.output(op));
  if (from.sizes.empty() || to.sizes.empty() || from.sizes.back() != to.sizes.back()) return false;
  const auto kind = ops::definition_of(node.op).kind;
  if (kind == OpKind::kReshape) return from.dtype == to.dtype;
  return kind == OpKind::kCopy && from.sizes == to.sizes && c10::isReducedFloatingType(from.dtype) &&
         to.dtype == at::kFloat;
}

std::optional<Head> head_of(const OpGraph& graph, const ValueUses& uses, OpId loss) {
  if (!is_loss_of_indices(graph, loss)) return std::nullopt;
  Head head{OpId::none(), loss, {}};
  const bool with_gradients = graph.op(loss).grad_enabled;
  auto reader = loss;
  for (auto value = graph.input(loss, LossArgument::kLogits);;) {
    const auto maker = graph.value(value).definer;
    if (!maker.valid() || uses.only_use(value) != reader || graph.op(maker).grad_enabled != with_gradients)
      return std::nullopt;
    if (graph.is(maker, ops::kLinear)) {
      head.linear = maker;
      break;
    }
    if (!keeps_rows(graph, maker)) return std::nullopt;
    const bool reshapes = ops::definition_of(graph.op(maker).op).kind == OpKind::kReshape;
    head.reshapes = head.reshapes || reshapes;
    head.between.push_back(maker);
    reader = maker;
    value = graph.input(maker, 0);
  }
  const auto &features = graph.value(graph.input(head.linear, 0)), &weight = graph.value(graph.input(head.linear, 1));
  const bool depends = std::ranges::any_of(features.sizes, [](SizeExpr size) { return size.depends_on_batch(); });
  if (!depends || weight.sizes.size() != 2 || features.sizes.size() < 2) return std::nullopt;
  for (const std::int32_t operand : {0, 1, 2}) {
    const auto value = graph.input(head.linear, operand);
    if (value.valid() && uses.written_between(value, head.linear, loss)) return std::nullopt;
  }
  return head;
}

std::vector<Head> heads_in(const OpGraph& graph) {
  const ValueUses uses(graph);
  std::vector<Head> heads;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    if (auto head = head_of(graph, uses, OpId::of(i))) heads.push_back(*std::move(head));
  }
  return heads;
}

bool has_no_gaps(const ValueInfo& value) {
  SizeExpr step{0, 1};
  for (std::size_t dim = value.sizes.size(); dim-- > 0;) {
    if (value.strides[dim] != step) return false;
    const auto size = value.sizes[dim];
    if (step.depends_on_batch() && size.depends_on_batch()) return false;
    step = {step.per_sample * size.fixed + step.fixed * size.per_sample, step.fixed * size.fixed};
  }
  return true;
}

/// The features as [N, D], made where the logits were. @return they
ValueId flatten_features(OpGraph& graph, const Head& head) {
  static const auto op = ops::operator_named(ops::kReshape);
  const auto features = graph.input(head.linear, 0);
  auto flat = graph.value(features);
  const auto width = flat.sizes.back();
  const auto rows = graph.value(graph.input(head.loss, LossArgument::kLogits)).sizes.front();
  const bool copies = !has_no_gaps(flat);
  flat.kind = ValueKind::kComputed;
  flat.previous = ValueId::none();
  flat.name.clear();
  flat.position = -1;
  flat.constant = at::Tensor();
  flat.sizes = {rows, width};
  flat.strides = {width, SizeExpr{0, 1}};
  flat.definer = head.linear;
  if (copies) flat.storage = StorageId::of(static_cast<std::size_t>(graph.storage_count++));
  const auto result = ValueId::of(graph.values.size());
  OpNode node{op, {c10::IValue(), c10::List<std::int64_t>({-1, width.fixed})}};
  node.inputs = {{0, SlotKind::kTensor, {features}}};
  node.outputs = {{0, SlotKind::kTensor, {result}}};
  node.grad_enabled = graph.op(head.linear).grad_enabled;
  node.reads = {graph.value(features).storage};
  if (copies) node.writes = {flat.storage};
  node.path = graph.op(head.linear).path;
  graph.values.push_back(std::move(flat));
  graph.op(head.linear) = std::move(node);
  return result;
}

/// @param features  [N, D]
OpNode class_head_node(const OpGraph& graph, const Head& head, ValueId features, const OpNode& linear) {
  using Argument = ClassHeadArgument;
  static const auto op = fused_operator(kLinearCrossEntropy);
  const auto& loss = graph.op(head.loss);
  OpNode node{op, std::vector<c10::IValue>(Argument::kCount)};
  node.args[Argument::kReduction] = loss.args[LossArgument::kReduction];
  node.args[Argument::kIgnoreIndex] = loss.args[LossArgument::kIgnoreIndex];
  node.args[Argument::kLabelSmoothing] = loss.args[LossArgument::kLabelSmoothing];
  const auto take = [&](std::int32_t position, ValueId value) {
    if (!value.valid()) return;
    node.inputs.push_back({position, SlotKind::kTensor, {value}});
    node.reads.push_back(graph.value(value).storage);
  };
  const auto of_linear = [&](std::int32_t position) {
    for (const auto& slot : linear.inputs) {
      if (slot.position == position) return slot.values.front();
    }
    return ValueId::none();
  };
  take(Argument::kFeatures, features);
  take(Argument::kProjection, of_linear(1));
  take(Argument::kProjectionBias, of_linear(2));
  take(Argument::kTarget, graph.input(head.loss, LossArgument::kTarget));
  take(Argument::kWeight, graph.input(head.loss, LossArgument::kWeight));
  sort_storages(node.reads);
  node.outputs = loss.outputs;
  node.writes = loss.writes;
  node.grad_enabled = loss.grad_enabled;
  node.path = linear.path;
  return node;
}

}  // namespace

OpGraph fold_class_heads(OpGraph graph) {
  const auto heads = heads_in(graph);
  if (heads.empty()) return graph;
  std::vector<bool> removed(graph.ops.size(), false);
  for (const auto& head : heads) {
    const auto linear = graph.op(head.linear);
    auto features = linear.inputs.front().values.front();
    for (const auto op : head.between) removed[op.index()] = true;
    if (head.reshapes)
      features = flatten_features(graph, head);
    else
      removed[head.linear.index()] = true;
    graph.op(head.loss) = class_head_node(graph, head, features, linear);
  }
  compact(graph, removed);
  order_values(graph);
  return graph;
}

double logits_of_class_heads(const OpGraph& graph, std::int64_t samples) {
  double bytes = 0;
  for (const auto& head : heads_in(graph)) {
    const auto& logits = graph.value(graph.input(head.loss, LossArgument::kLogits));
    bytes += static_cast<double>(logits.elements(samples)) * static_cast<double>(c10::elementSize(logits.dtype));
  }
  return bytes;
}

}  // namespace autopar::passes
