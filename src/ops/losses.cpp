#include "ops/losses.hpp"

#include <algorithm>

#include <ATen/core/Reduction.h>

#include "ops/op_list.hpp"
#include "ops/rules.hpp"

namespace autopar::ops {

// Sum: slices add up. Mean: over a number of elements proportional to the samples, so slice means are weighted by n/N.
BatchTyping reduced(const OpCall& op, BatchType unreduced) {
  const auto reduction = op.integer("reduction", at::Reduction::Mean);
  if (reduction == at::Reduction::None) return typed(op, unreduced);
  BatchTyping result = typed(op, BatchType::partial_sum());
  result.handling.scale_output = reduction == at::Reduction::Mean;
  return result;
}

std::vector<PickedDim> picks_targets(const OpCall& op) {
  const auto self = op.first_tensor(), target = op.tensor("target");
  if (!self.valid() || !target.valid() || op.rank(self) == 0) return {};
  return {{target, op.sizes(self)[op.rank(self) > 1 ? 1 : 0]}};
}

namespace {

BatchTyping pointwise_loss(const OpCall& op) {
  const auto operands = op.tensors();
  std::int64_t rank = 0;
  for (const auto operand : operands) rank = std::max(rank, op.rank(operand));
  const auto shared = broadcast(op, operands, rank);
  if (!shared || !shared->is_batched()) return BatchTyping::mixes("it compares samples with other samples");
  return reduced(op, *shared);
}

BatchTyping row_loss(const OpCall& op) {
  std::optional<BatchType> shared;
  for (const auto operand : op.tensors()) {
    const auto& type = op.type(operand);
    if (!type.has_samples()) {
      if (operand == op.tensor("weight")) continue;
      return BatchTyping::mixes("one of its operands is shared by all samples");
    }
    if (!type.is_batched() || type.dim != 0 || (shared && *shared != type)) {
      return BatchTyping::mixes("its samples are not all in dim 0");
    }
    shared = type;
  }
  if (op.rank(op.first_tensor()) < 2) return BatchTyping::mixes("it takes the batch for one row");
  return reduced(op, *shared);
}

// Each sample has a sequence, a row of targets and two lengths. Its loss, divided by its target length, is an addend of
// the mean.
BatchTyping sequence_loss(const OpCall& op) {
  const auto sequences = op.tensor("log_probs");
  const auto& type = op.type(sequences);
  if (op.rank(sequences) != 3 || !type.is_batched() || type.dim != 1) {
    return BatchTyping::mixes("its samples are not in dim 1 of the sequences");
  }
  for (const auto* name : {"targets", "input_lengths", "target_lengths"}) {
    const auto operand = op.tensor(name);
    if (!operand.valid()) return BatchTyping::mixes("its lengths are a list of numbers; pass them as tensors");
    const auto& own = op.type(operand);
    if (op.rank(operand) != (std::string_view(name) == "targets" ? 2 : 1)) {
      return BatchTyping::mixes("its targets are joined in one row; pass one row for each sample");
    }
    if (!own.is_batched() || own.dim != 0 || !own.same_layout(type)) {
      return BatchTyping::mixes(std::string("its ") + name + " are not one for each sample");
    }
  }
  return reduced(op, type.at_dim(0));
}

}  // namespace

void add_losses(OpList& list) {
  OpDef def;
  def.saved = SavedTensors::kInputs;
  def.treatment = kSums;
  def.summary = "losses: per sample, summed, or divided by the global count";
  def.over_samples = pointwise_loss;
  list.add(def, {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
                 "binary_cross_entropy_with_logits", "kl_div", "soft_margin_loss", "margin_ranking_loss",
                 "hinge_embedding_loss", "poisson_nll_loss"});
  def.over_samples = sequence_loss;
  list.add(def, {"ctc_loss"});
  def.over_samples = row_loss;
  def.picks = picks_targets;
  list.add(def, {"cosine_embedding_loss", "triplet_margin_loss", "multi_margin_loss", "multilabel_margin_loss"});
}

}  // namespace autopar::ops
