#include "torch/fused/linear_cross_entropy.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/library.h>

#include <autopar/shard/linear_cross_entropy.hpp>

#include "capture/ir/compact.hpp"
#include "capture/ir/value_uses.hpp"
#include "ops/cross_entropy.hpp"
#include "ops/names.hpp"
#include "ops/registry.hpp"
#include "ops/rules.hpp"
#include "shard/local_class_head.hpp"
#include "torch/fused/class_loss.hpp"
#include "torch/fused/fused_ops.hpp"
#include "torch/fused/loss_reduction.hpp"

namespace autopar::fused {

namespace {

using at::Tensor;
using std::optional;

/// The operator's arguments.
struct LinearCrossEntropyArgument {
  enum : std::int32_t {
    kFeatures,
    kProjection,
    kProjectionBias,
    kTarget,
    kWeight,
    kReduction,
    kIgnoreIndex,
    kLabelSmoothing,
    kCount
  };
};

/// Arguments that define the loss.
struct LossArguments {
  optional<Tensor> weight;
  std::int64_t reduction, ignore_index;
  double label_smoothing;
};

Tensor class_head(const autopar::detail::ClassHeadFactors& factors, const Tensor& target, const Group& group,
                  const Split& classes, const LossArguments& arguments) {
  auto loss = ParallelCrossEntropyOptions()
                  .reduction(loss_reduction(arguments.reduction))
                  .ignore_index(arguments.ignore_index)
                  .label_smoothing(arguments.label_smoothing)
                  .check_targets(factors.features.is_cpu());
  if (arguments.weight.has_value()) loss.weight(*arguments.weight);
  const double logits = static_cast<double>(factors.features.size(0)) * static_cast<double>(factors.weight.size(0));
  const double chunk = std::max(kLeastLogitsChunk, std::ceil(logits / kMostLogitsChunks));
  return autopar::detail::local_class_head(
      factors, target, group, classes,
      LinearCrossEntropyOptions(loss).chunk_elements(static_cast<std::int64_t>(chunk)));
}

Tensor class_head_in_chunks(const Tensor& features, const Tensor& projection, const optional<Tensor>& bias,
                            const Tensor& target, const optional<Tensor>& weight, std::int64_t reduction,
                            std::int64_t ignore_index, double label_smoothing) {
  return class_head({features, projection, bias.value_or(Tensor())}, target, Group(), Split({projection.size(0)}),
                    {weight, reduction, ignore_index, label_smoothing});
}

Tensor class_head_of_libtorch(const Tensor& features, const Tensor& projection, const optional<Tensor>& bias,
                              const Tensor& target, const optional<Tensor>& weight, std::int64_t reduction,
                              std::int64_t ignore_index, double label_smoothing) {
  return cross_entropy_of_libtorch(at::linear(features, projection, bias), target, weight, reduction, ignore_index,
                                   label_smoothing);
}

optional<Tensor> optional_tensor(const c10::IValue& value) {
  return value.isNone() ? std::nullopt : optional<Tensor>(value.toTensor());
}

// ---------------------------------------------------------------- pattern

using LossArgument = ops::CrossEntropyArgument;

struct Head {
  OpId linear, loss;
  std::vector<OpId> between;  ///< in order from the loss to the linear layer
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

/// Whether the operator only reshapes the leading dimensions or casts to single precision, and so keeps each row of
/// classes.
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

std::optional<Head> head_of(const OpGraph& graph, const ir::ValueUses& uses, OpId loss) {
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
  const ir::ValueUses uses(graph);
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

/// The features reshaped to [N, D] at the place where the logits were computed. @return the reshaped features
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
  const auto op = fused_operator(kLinearCrossEntropy);
  const auto& loss = graph.op(head.loss);
  OpNode node{op, std::vector<c10::IValue>(LinearCrossEntropyArgument::kCount)};
  node.args[LinearCrossEntropyArgument::kReduction] = loss.args[LossArgument::kReduction];
  node.args[LinearCrossEntropyArgument::kIgnoreIndex] = loss.args[LossArgument::kIgnoreIndex];
  node.args[LinearCrossEntropyArgument::kLabelSmoothing] = loss.args[LossArgument::kLabelSmoothing];
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
  take(LinearCrossEntropyArgument::kFeatures, features);
  take(LinearCrossEntropyArgument::kProjection, of_linear(1));
  take(LinearCrossEntropyArgument::kProjectionBias, of_linear(2));
  take(LinearCrossEntropyArgument::kTarget, graph.input(head.loss, LossArgument::kTarget));
  take(LinearCrossEntropyArgument::kWeight, graph.input(head.loss, LossArgument::kWeight));
  ir::sort_storages(node.reads);
  node.outputs = loss.outputs;
  node.writes = loss.writes;
  node.grad_enabled = loss.grad_enabled;
  node.path = linear.path;
  return node;
}

/// Joins a linear layer and the cross entropy of its result: a third more products, no logits in memory. Between the
/// two may be a reshape to [N, C] and a cast to single precision. The logits must have no other reader, and targets
/// must be indices. Values are the same except for the order of additions. O(graph).
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
  ir::compact(graph, removed);
  ir::order_values(graph);
  return graph;
}

// ---------------------------------------------------------------- cost

/// Rows and classes of the chunked logits, and the bytes of one statistic.
struct HeadSizes {
  Affine rows;
  double classes = 0, number = 0;
};
HeadSizes head_sizes(const OpCall& op) {
  const auto loss = op.graph().value(op.results().front()).dtype;
  return {ops::elements(op.sizes(op.tensor("target"))),
          static_cast<double>(op.sizes(op.tensor("projection")).front().at(1)),
          static_cast<double>(size_of(ops::dtype_of(loss)).value())};
}

std::vector<ValueId> factors_of(const OpCall& op) { return {op.tensor("features"), op.tensor("projection")}; }

BatchTyping type_class_head(const OpCall& op) {
  for (const auto* name : {"projection", "projection_bias"}) {
    const auto shared = op.tensor(name);
    if (shared.valid() && op.type(shared).has_samples()) return BatchTyping::mixes("its projection has samples");
  }
  return ops::class_loss(op);
}

std::optional<Affine> flops_of_class_head(const OpCall& op) {
  return ops::elements(op.sizes(op.first_tensor())) * (2 * head_sizes(op).classes);
}

/// Chunked logits pass through memory, and each chunk launches kernels. The loss is in single precision for all types
/// of the products.
void add_work_of_chunks(const OpCall& op, WorkItem& item) {
  constexpr double kPasses = 4, kKernelsOfChunk = 8;
  const auto [rows, classes, number] = head_sizes(op);
  item.dtype = ops::dtype_of(op.graph().value(op.first_tensor()).dtype);
  item.forward.bytes += rows * (classes * number * kPasses);
  item.forward.launches = {0, kMostLogitsChunks * kKernelsOfChunk};
  if (!ops::is_differentiable(op)) return;
  item.backward.bytes = item.forward.bytes * 2;
  item.backward.launches = item.forward.launches;
}

SavedBytes saved_by_class_head(const OpCall& op) {
  const auto [rows, classes, number] = head_sizes(op);
  return {{op.first_tensor(), op.tensor("target")}, rows * (number * (1 + kMostLogitsChunks))};
}

OpWorkspace workspace_of_class_head(const OpCall& op) {
  const auto [rows, classes, number] = head_sizes(op);
  // Logits in their own type and in the type of statistics; later results overwrite them.
  constexpr double kCopies = 2, kStatisticsOfRow = 4;
  const auto chunk = Affine{0, std::max(kLeastLogitsChunk, classes)} + rows * (classes / kMostLogitsChunks + 1);
  auto working = chunk * (kCopies * number) + rows * (kStatisticsOfRow * number);
  for (const auto factor : factors_of(op)) {
    if (!c10::isReducedFloatingType(op.graph().value(factor).dtype) || !ops::requires_grad(op, factor)) continue;
    working += ops::elements(op.sizes(factor)) * number;  // its gradient is accumulated in the type of statistics
  }
  return {working, working};
}

ShardedOp shard_class_head(ShardCall& call) {
  const auto& op = call.op();
  const auto projection = op.tensor("projection"), bias = op.tensor("projection_bias");
  if (!call.is_sharded(projection)) return ShardedOp::whole();
  const auto& classes = call.slices(projection);
  const bool is_plain = classes.dim == 0 && classes.is_plain();
  const bool others_whole =
      std::ranges::all_of(call.sharded(), [&](ValueId operand) { return operand == projection || operand == bias; });
  if (!is_plain || !others_whole || (bias.valid() && !call.require(bias, 0, classes))) return ShardedOp::whole();
  return call.with(std::vector(op.results().size(), TensorLayout::whole()), ShardedOp::Kernel::kTogether);
}

OpDef cost_of_class_head() {
  OpDef def;
  def.name = kLinearCrossEntropy;
  def.op_class = OpClass::kMatmul;
  def.traits = OpTrait::kReadsWeights;
  def.over_samples = type_class_head;
  def.flops = flops_of_class_head;
  // The logits are recomputed.
  def.backward_products = [](const OpCall& op) { return ops::products_needed(op, factors_of(op)) + 1; };
  def.work = add_work_of_chunks;
  def.saved = SavedTensors::kInput;
  def.saved_by = saved_by_class_head;
  def.workspace = workspace_of_class_head;
  def.sharding = shard_class_head;
  def.sharded_argument = LinearCrossEntropyArgument::kProjection;
  def.exchanged = ops::statistics_of_shards;
  def.makes_class_loss = true;
  def.layer = LayerForm{.weight = LinearCrossEntropyArgument::kProjection, .outputs = 0, .makes_loss = true};
  return def;
}

}  // namespace

Tensor linear_cross_entropy_of_shard(const torch::jit::Stack& stack, const Group& group, const Split& classes) {
  const auto bias = optional_tensor(stack[LinearCrossEntropyArgument::kProjectionBias]).value_or(Tensor());
  return class_head(
      {stack[LinearCrossEntropyArgument::kFeatures].toTensor(),
       stack[LinearCrossEntropyArgument::kProjection].toTensor(), bias},
      stack[LinearCrossEntropyArgument::kTarget].toTensor(), group, classes,
      {optional_tensor(stack[LinearCrossEntropyArgument::kWeight]),
       stack[LinearCrossEntropyArgument::kReduction].toInt(), stack[LinearCrossEntropyArgument::kIgnoreIndex].toInt(),
       stack[LinearCrossEntropyArgument::kLabelSmoothing].toDouble()});
}

double bytes_of_chunked_logits(const OpGraph& graph, std::int64_t samples) {
  double bytes = 0;
  for (const auto& head : heads_in(graph)) {
    const auto& logits = graph.value(graph.input(head.loss, LossArgument::kLogits));
    bytes += static_cast<double>(logits.elements(samples)) * static_cast<double>(c10::elementSize(logits.dtype));
  }
  return bytes;
}

FusedOp linear_cross_entropy() {
  return {
      .name = kLinearCrossEntropy,
      .schema =
          "linear_cross_entropy(Tensor features, Tensor projection, Tensor? projection_bias, Tensor target, Tensor? "
          "weight, int reduction, int ignore_index, float label_smoothing) -> Tensor",
      .pattern = fold_class_heads,
      .cost = cost_of_class_head,
      .forward = boxed<class_head_in_chunks>,
      .reference = boxed<class_head_of_libtorch>};
}

}  // namespace autopar::fused
