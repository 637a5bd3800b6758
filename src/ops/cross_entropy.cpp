#include "ops/cross_entropy.hpp"

#include <utility>

#include "ops/losses.hpp"
#include "ops/op_list.hpp"
#include "ops/rules.hpp"

namespace autopar::ops {

// Types cross entropy of logits, or of the features from which they are computed.
BatchTyping class_loss(const OpCall& op) {
  const auto self = op.first_tensor();
  const auto target = op.tensor("target");
  const auto weight = op.tensor("weight");
  const auto& type = op.type(self);
  const auto& goal = op.type(target);
  if (weight.valid() && op.type(weight).has_samples()) return BatchTyping::mixes("its class weights have samples");
  if (!type.is_batched() || op.rank(self) < 2 || type.dim == 1)
    return BatchTyping::mixes("its classes run over the batch");
  const bool probabilities = op.is_floating(target);
  const auto own_dim = type.dim == 0 ? 0 : type.dim - 1;
  if (!goal.is_batched() || !goal.same_layout(type) || goal.dim != (probabilities ? type.dim : own_dim)) {
    return BatchTyping::mixes("its targets are not one for each sample");
  }
  auto result = reduced(op, type.at_dim(own_dim));
  if (!result.handling.scale_output || probabilities) return result;
  result.handling.scale_output = false;
  result.handling.reduction_argument = op.position("reduction");
  result.count = LossCount{target, weight, op.integer("ignore_index", -100)};
  return result;
}

SavedBytes saved_by_cross_entropy(const OpCall& op, const Affine& log_probabilities) {
  SavedBytes saved{{}, log_probabilities};
  for (const auto* name : {"target", "weight"}) {
    if (const auto value = op.tensor(name); value.valid()) saved.values.push_back(value);
  }
  return saved;
}

OpWorkspace workspace_of_cross_entropy(const OpCall& op) {
  if (!is_differentiable(op) || gradient_place(op.graph(), op.id()) != GradientPlace::kNew) return {};
  return {{}, saved_by(op).internal};
}

ShardedOp shard_classes(ShardCall& call, bool widens) {
  const auto& op = call.op();
  const auto logits = op.tensor("self"), target = op.tensor("target");
  const std::int64_t classes = op.rank(logits) == 1 ? 0 : 1;
  const auto& graph = op.graph();
  const bool of_indices = c10::isIntegralType(graph.value(target).dtype, /*includeBool=*/false);
  if (call.sharded() != std::vector{logits} || call.slices(logits).dim != classes || !of_indices)
    return ShardedOp::whole();
  if (!call.slices(logits).is_plain()) return ShardedOp::whole();
  const auto type = graph.value(logits).dtype;
  if (!widens && type != at::kFloat && type != at::kDouble) return ShardedOp::whole();
  std::vector<TensorLayout> results(op.results().size(), TensorLayout::whole());
  return call.with(std::move(results), ShardedOp::Kernel::kTogether);
}

std::optional<Affine> statistics_of_shards(const OpCall& op) {
  constexpr double kShards = 16, kStatistics = 3, kBytesOfRow = kShards * kStatistics * sizeof(double);
  return elements(op.sizes(op.tensor("target"))) * kBytesOfRow;
}

namespace {

SavedBytes saved_log_probabilities(const OpCall& op) {
  return saved_by_cross_entropy(op, bytes_of(op.graph(), op.first_tensor()));
}

/// The gradient overwrites the log-probabilities, unless something else reads them.
GradientPlace place_of_gradient(const OpGraph& graph, OpId op) {
  using Argument = CrossEntropyArgument;
  if (!graph.op(op).grad_enabled) return GradientPlace::kNew;
  const auto logits = graph.input(op, Argument::kLogits), target = graph.input(op, Argument::kTarget),
             weight = graph.input(op, Argument::kWeight);
  if (!logits.valid() || !target.valid() || !graph.value(logits).has_gradient()) return GradientPlace::kNew;
  const auto type = graph.value(logits).dtype;
  const bool is_wide = type == c10::ScalarType::Float || type == c10::ScalarType::Double;
  const bool of_indices = c10::isIntegralType(graph.value(target).dtype, /*includeBool=*/false);
  const bool trains_weight = weight.valid() && graph.value(weight).has_gradient();
  const auto& smoothing = graph.op(op).args.at(Argument::kLabelSmoothing);
  const bool in_place = is_wide && of_indices && !trains_weight && smoothing.isDouble() && smoothing.toDouble() == 0;
  return in_place ? GradientPlace::kOverSaved : GradientPlace::kNew;
}

}  // namespace

void add_cross_entropy(OpList& list) {
  OpDef def;
  def.over_samples = class_loss;
  def.picks = picks_targets;
  def.saved = SavedTensors::kIndices;
  def.workspace = workspace_of_cross_entropy;
  def.traits = OpTrait::kReadsWeights;
  def.treatment = kSums;
  def.summary = "losses: per sample, summed, or divided by the global count";
  list.add(def, {"nll_loss", "nll_loss_nd", "nll_loss2d"});
  def.saved_by = saved_log_probabilities;
  def.keeps_result = true;
  def.gradient_place = place_of_gradient;
  def.sharding = [](ShardCall& call) { return shard_classes(call, /*widens=*/false); };
  def.exchanged = statistics_of_shards;
  def.makes_class_loss = true;
  def.autocast = AutocastRule::kFloat32;
  list.add(def, {"cross_entropy_loss"});
}

}  // namespace autopar::ops
