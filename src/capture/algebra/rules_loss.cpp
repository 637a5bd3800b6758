#include <algorithm>

#include <ATen/core/Reduction.h>

#include "capture/algebra/op_context.hpp"

namespace autopar::algebra {
namespace {

// Sum: slices add up. Mean: over a number of elements proportional to the samples, so slice means weigh n/N.
RuleResult reduced(const OpContext& op, BatchType unreduced) {
  const auto reduction = op.integer("reduction", at::Reduction::Mean);
  if (reduction == at::Reduction::None) return typed(op, unreduced);
  RuleResult result = typed(op, BatchType::partial_sum());
  result.handling.scale_output = reduction == at::Reduction::Mean;
  return result;
}

RuleResult type_pointwise_loss(const OpContext& op) {
  const auto operands = op.tensors();
  std::int64_t rank = 0;
  for (const auto operand : operands) rank = std::max(rank, op.rank(operand));
  const auto shared = broadcast(op, operands, rank);
  if (!shared || !shared->is_batched()) return RuleResult::mixes("it compares samples with other samples");
  return reduced(op, *shared);
}

RuleResult type_row_loss(const OpContext& op) {
  std::optional<BatchType> shared;
  for (const auto operand : op.tensors()) {
    const auto& type = op.type(operand);
    if (!type.has_samples()) {
      if (operand == op.tensor("weight")) continue;
      return RuleResult::mixes("one of its operands is shared by all samples");
    }
    if (!type.is_batched() || type.dim != 0 || (shared && *shared != type)) {
      return RuleResult::mixes("its samples are not all in dim 0");
    }
    shared = type;
  }
  if (op.rank(op.first_tensor()) < 2) return RuleResult::mixes("it takes the batch for one row");
  return reduced(op, *shared);
}

// Each sample has a sequence, a row of targets and two lengths; its loss, by its own length, is an addend of the mean.
RuleResult type_sequence_loss(const OpContext& op) {
  const auto sequences = op.tensor("log_probs");
  const auto& type = op.type(sequences);
  if (op.rank(sequences) != 3 || !type.is_batched() || type.dim != 1) {
    return RuleResult::mixes("its samples are not in dim 1 of the sequences");
  }
  for (const auto* name : {"targets", "input_lengths", "target_lengths"}) {
    const auto operand = op.tensor(name);
    if (!operand.valid()) return RuleResult::mixes("its lengths are a list of numbers; pass them as tensors");
    const auto& own = op.type(operand);
    if (op.rank(operand) != (std::string_view(name) == "targets" ? 2 : 1)) {
      return RuleResult::mixes("its targets are joined in one row; pass one row for each sample");
    }
    if (!own.is_batched() || own.dim != 0 || !own.same_layout(type)) {
      return RuleResult::mixes(std::string("its ") + name + " are not one for each sample");
    }
  }
  return reduced(op, type.at_dim(0));
}

// Of logits, or of the features that they are made of.
RuleResult type_class_loss(const OpContext& op) {
  const auto self = op.first_tensor();
  const auto target = op.tensor("target");
  const auto weight = op.tensor("weight");
  const auto& type = op.type(self);
  const auto& goal = op.type(target);
  if (weight.valid() && op.type(weight).has_samples()) return RuleResult::mixes("its class weights have samples");
  if (!type.is_batched() || op.rank(self) < 2 || type.dim == 1)
    return RuleResult::mixes("its classes run over the batch");
  const bool probabilities = op.is_floating(target);
  const auto own_dim = type.dim == 0 ? 0 : type.dim - 1;
  if (!goal.is_batched() || !goal.same_layout(type) || goal.dim != (probabilities ? type.dim : own_dim)) {
    return RuleResult::mixes("its targets are not one for each sample");
  }
  auto result = reduced(op, type.at_dim(own_dim));
  if (!result.handling.scale_output || probabilities) return result;
  result.handling.scale_output = false;
  result.handling.reduction_argument = op.position("reduction");
  result.count = LossCount{target, weight, op.integer("ignore_index", -100)};
  return result;
}

RuleResult type_class_head(const OpContext& op) {
  for (const auto* name : {"projection", "projection_bias"}) {
    const auto shared = op.tensor(name);
    if (shared.valid() && op.type(shared).has_samples()) return RuleResult::mixes("its projection has samples");
  }
  return type_class_loss(op);
}

}  // namespace

RuleResult type_loss_op(const OpContext& op) {
  if (op.traits().family == OpFamily::kClassHead) return type_class_head(op);
  if (op.traits().family == OpFamily::kClassLoss) return type_class_loss(op);
  if (op.traits().family == OpFamily::kSequenceLoss) return type_sequence_loss(op);
  return op.traits().family == OpFamily::kRowLoss ? type_row_loss(op) : type_pointwise_loss(op);
}

}  // namespace autopar::algebra
