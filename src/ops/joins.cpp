#include "ops/op_list.hpp"
#include "ops/rules.hpp"

namespace autopar::ops {

namespace {

BatchTyping cat_along_others(const OpCall& op) {
  const auto operands = op.tensors();
  const auto rank = static_cast<std::int64_t>(op.result_sizes().size());
  const auto dim = wrap_dim(op.integer("dim", 0), rank);
  const auto shared = broadcast(op, operands, rank);
  if (!shared || (shared->has_samples() && shared->dim != dim)) {
    // Along another dim every piece must have its samples in the same place.
    for (const auto operand : operands) {
      const bool empty = op.sizes(operand) == Sizes{SizeExpr{0, 0}};
      if (!shared || (!op.type(operand).has_samples() && !empty)) {
        return BatchTyping::mixes("it joins tensors whose samples are in different places");
      }
    }
    return typed(op, *shared);
  }
  std::int64_t outer = 0;
  for (const auto operand : operands) {
    const auto& type = op.type(operand);
    if (!type.is_batched() || type.inner != shared->inner) {
      return BatchTyping::mixes("it appends to the batch what is not one row for each sample");
    }
    outer += type.outer;
  }
  return typed(op, BatchType::batched(dim, outer, shared->inner));
}

// Layouts may differ in `outer` when batches are joined; `broadcast` would report a conflict.
BatchTyping cat(const OpCall& op) {
  const auto operands = op.tensors();
  const auto dim = wrap_dim(op.integer("dim", 0), static_cast<std::int64_t>(op.result_sizes().size()));
  std::int64_t outer = 0;
  const auto inner = op.type(operands.front()).inner;
  for (const auto operand : operands) {
    const auto& type = op.type(operand);
    if (!type.is_batched() || type.dim != dim || type.inner != inner) return cat_along_others(op);
    outer += type.outer;
  }
  return typed(op, BatchType::batched(dim, outer, inner));
}

BatchTyping stack(const OpCall& op) {
  const auto operands = op.tensors();
  const auto rank = op.rank(operands.front());
  const auto at = wrap_dim(op.integer("dim", 0), rank + 1);
  const auto shared = broadcast(op, operands, rank);
  if (!shared || !shared->has_samples())
    return BatchTyping::mixes("it joins tensors whose samples are in different places");
  for (const auto operand : operands) {
    if (!op.type(operand).has_samples()) {
      return BatchTyping::mixes("it joins tensors whose samples are in different places");
    }
  }
  return typed(op, shared->at_dim(shared->dim + (at <= shared->dim ? 1 : 0)));
}

/// Linear if all operands are partial sums.
BatchTyping join_of_sums(const OpCall& op) { return linear_in_sum(op, sum_operands(op).shared.empty()); }

}  // namespace

void add_joins(OpList& list) {
  OpDef def;
  def.traits = OpTrait::kKeepsIntegers;
  def.saved = SavedTensors::kNothing;
  def.over_samples = cat;
  def.over_sums = join_of_sums;
  def.sharding = shard_by_dims;
  def.treatment = kPerSample;
  def.summary = "all pieces have their samples in one dim; batches may be joined along it";
  list.add(def, {"cat", "concat", "concatenate"});
  def.over_samples = stack;
  list.add(def, {"stack"});
}

}  // namespace autopar::ops
