#include "torch/fused/class_head.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include <torch/library.h>

#include <autopar/shard/linear_cross_entropy.hpp>

#include "capture/ir/class_head.hpp"
#include "ops/cross_entropy.hpp"
#include "ops/rules.hpp"
#include "shard/local_class_head.hpp"
#include "torch/fused/fused_ops.hpp"
#include "torch/fused/loss_reduction.hpp"

namespace autopar {

namespace {

using at::Tensor;
using std::optional;

/// Arguments that say which loss it is.
struct LossArguments {
  optional<Tensor> weight;
  std::int64_t reduction, ignore_index;
  double label_smoothing;
};

Tensor class_head(const detail::ClassHeadFactors& factors, const Tensor& target, const Group& group,
                  const Split& classes, const LossArguments& arguments) {
  auto loss = ParallelCrossEntropyOptions()
                  .reduction(loss_reduction(arguments.reduction))
                  .ignore_index(arguments.ignore_index)
                  .label_smoothing(arguments.label_smoothing)
                  .check_targets(factors.features.is_cpu());
  if (arguments.weight.has_value()) loss.weight(*arguments.weight);
  const double logits = static_cast<double>(factors.features.size(0)) * static_cast<double>(factors.weight.size(0));
  const double chunk = std::max(kLeastClassHeadChunk, std::ceil(logits / kMostClassHeadChunks));
  return detail::local_class_head(factors, target, group, classes,
                                  LinearCrossEntropyOptions(loss).chunk_elements(static_cast<std::int64_t>(chunk)));
}

Tensor class_head_in_one_process(const Tensor& features, const Tensor& projection, const optional<Tensor>& bias,
                                 const Tensor& target, const optional<Tensor>& weight, std::int64_t reduction,
                                 std::int64_t ignore_index, double label_smoothing) {
  return class_head({features, projection, bias.value_or(Tensor())}, target, Group(), Split({projection.size(0)}),
                    {weight, reduction, ignore_index, label_smoothing});
}

optional<Tensor> optional_tensor(const c10::IValue& value) {
  return value.isNone() ? std::nullopt : optional<Tensor>(value.toTensor());
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(autopar, library) {
  library.def(
      "linear_cross_entropy(Tensor features, Tensor projection, Tensor? projection_bias, Tensor target, Tensor? "
      "weight, int reduction, int ignore_index, float label_smoothing) -> Tensor",
      class_head_in_one_process);
}

Tensor class_head_of_shard(const torch::jit::Stack& stack, const Group& group, const Split& classes) {
  using Argument = ClassHeadArgument;
  const auto bias = optional_tensor(stack[Argument::kProjectionBias]).value_or(Tensor());
  return class_head({stack[Argument::kFeatures].toTensor(), stack[Argument::kProjection].toTensor(), bias},
                    stack[Argument::kTarget].toTensor(), group, classes,
                    {optional_tensor(stack[Argument::kWeight]), stack[Argument::kReduction].toInt(),
                     stack[Argument::kIgnoreIndex].toInt(), stack[Argument::kLabelSmoothing].toDouble()});
}

namespace detail {

namespace {

using Argument = ClassHeadArgument;

/// Of the logits that it makes in chunks, and bytes of one of their statistics.
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

/// Logits pass through memory, and kernels are as many as chunks make them. The loss is in single precision, whatever
/// the products are in.
void add_work_of_chunks(const OpCall& op, WorkItem& item) {
  constexpr double kPasses = 4, kKernelsOfChunk = 8;
  const auto [rows, classes, number] = head_sizes(op);
  item.dtype = ops::dtype_of(op.graph().value(op.first_tensor()).dtype);
  item.forward.bytes += rows * (classes * number * kPasses);
  item.forward.launches = {0, kMostClassHeadChunks * kKernelsOfChunk};
  if (!ops::is_differentiable(op)) return;
  item.backward.bytes = item.forward.bytes * 2;
  item.backward.launches = item.forward.launches;
}

SavedBytes saved_by_class_head(const OpCall& op) {
  const auto [rows, classes, number] = head_sizes(op);
  return {{op.first_tensor(), op.tensor("target")}, rows * (number * (1 + kMostClassHeadChunks))};
}

OpWorkspace workspace_of_class_head(const OpCall& op) {
  const auto [rows, classes, number] = head_sizes(op);
  // Logits as they are made, and in the type of statistics; what follows is made in their place.
  constexpr double kCopies = 2, kStatisticsOfRow = 4;
  const auto chunk = Affine{0, std::max(kLeastClassHeadChunk, classes)} + rows * (classes / kMostClassHeadChunks + 1);
  auto working = chunk * (kCopies * number) + rows * (kStatisticsOfRow * number);
  for (const auto factor : factors_of(op)) {
    if (!c10::isReducedFloatingType(op.graph().value(factor).dtype) || !ops::requires_grad(op, factor)) continue;
    working += ops::elements(op.sizes(factor)) * number;  // its gradient is summed up in the type of statistics
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

}  // namespace

OpDef class_head_definition() {
  OpDef def;
  def.name = kLinearCrossEntropy;
  def.op_class = OpClass::kMatmul;
  def.traits = OpTrait::kReadsWeights;
  def.over_samples = type_class_head;
  def.flops = flops_of_class_head;
  // The logits are made once more.
  def.backward_products = [](const OpCall& op) { return ops::products_needed(op, factors_of(op)) + 1; };
  def.work = add_work_of_chunks;
  def.saved = SavedTensors::kInput;
  def.saved_by = saved_by_class_head;
  def.workspace = workspace_of_class_head;
  def.sharding = shard_class_head;
  def.sharded_argument = Argument::kProjection;
  def.exchanged = ops::statistics_of_shards;
  def.makes_class_loss = true;
  def.layer = LayerForm{.weight = Argument::kProjection, .outputs = 0, .makes_loss = true};
  return def;
}

}  // namespace detail

}  // namespace autopar
