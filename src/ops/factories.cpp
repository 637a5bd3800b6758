#include "ops/op_list.hpp"
#include "ops/rules.hpp"

namespace autopar::ops {

namespace {

BatchTyping new_tensor(const OpCall& op) { return typed(op, type_by_sizes(op.result_sizes())); }

BatchTyping new_like(const OpCall& op) {
  const auto& self = op.type(op.first_tensor());
  return typed(
      op, self.has_samples() ? BatchType::batched(self.dim, self.outer, self.inner) : type_by_sizes(op.result_sizes()));
}

BatchTyping range(const OpCall& op) {
  const auto end = op.expression("end");
  const bool from_zero = !op.has("start") || (op.expression("start") == SizeExpr{});
  const bool by_one = !op.has("step") || op.expression("step") == SizeExpr{0, 1};
  if (end == SizeExpr{1, 0} && from_zero && by_one) return typed(op, {BatchKind::kSampleIndex, 0, 1, 1});
  const bool by_row = end && op.has("step") && end->fixed == 0 && op.expression("step") == SizeExpr{0, end->per_sample};
  if (by_row && from_zero) return typed(op, {BatchKind::kRowStart, 0, 1, 1});
  return BatchTyping::mixes("it counts over the samples of the batch");
}

BatchTyping fill(const OpCall& op) {
  const auto operands = op.tensors();
  if (op.written_argument() < 0) {  // at::normal(mean, std) and similar operators
    const auto shared = broadcast(op, operands, static_cast<std::int64_t>(op.result_sizes().size()));
    if (operands.empty()) return typed(op, type_by_sizes(op.result_sizes()));
    return shared ? typed(op, *shared) : BatchTyping::mixes("its operands have samples in different dims");
  }
  for (std::size_t i = 1; i < operands.size(); ++i) {
    if (op.type(operands[i]).has_samples()) return BatchTyping::mixes("it fills with the value of one sample");
  }
  const auto& self = op.type(operands.front());
  return typed(
      op, self.has_samples() ? BatchType::batched(self.dim, self.outer, self.inner) : type_by_sizes(op.result_sizes()));
}

BatchTyping fill_sum(const OpCall& op) {
  const bool overwrites = op.written_argument() == 0 && sum_operands(op).first_only() && !op.node().is_random;
  return overwrites ? typed(op, BatchType::replicated()) : linear_in_sum(op, false);
}

ShardedOp shard_like(ShardCall& call) { return call.of_one(call.slices(call.sharded().front())); }

}  // namespace

void add_factories(OpList& list) {
  OpDef def;
  def.traits =
      OpTrait::kTakesBatchSizes | OpTrait::kMakesBatchDim | OpTrait::kReadsSizesOnly | OpTrait::kKeepsSampleNumbers;
  def.saved = SavedTensors::kNothing;
  def.over_samples = new_tensor;
  def.treatment = kPerSample;
  def.summary = "new tensors, alike for all samples; draws differ from slice to slice";
  list.add(def, {"empty", "zeros", "ones", "full", "rand", "randn", "randint", "new_empty", "new_zeros", "new_ones",
                 "new_full", "scalar_tensor", "empty_strided", "new_empty_strided", "empty_permuted"});

  auto like = def;
  like.over_samples = new_like;
  like.sharding = shard_like;
  list.add(like, {"empty_like", "zeros_like", "ones_like", "full_like", "randint_like"});
  like.traits = like.traits | OpTrait::kDrawsOnDevice;
  list.add(like, {"rand_like", "randn_like"});

  auto counting = def;
  counting.traits = OpTrait::kTakesBatchSizes | OpTrait::kMakesBatchDim;
  counting.over_samples = range;
  counting.summary = "over the batch: numbers of samples, good for picking each its own; mixes if used otherwise";
  list.add(counting, {"arange"});

  auto filling = def;
  filling.kind = OpKind::kFill;
  filling.traits = OpTrait::kNone;
  filling.over_samples = fill;
  filling.over_sums = fill_sum;
  filling.sharding = shard_pointwise;
  filling.summary = "overwrites a tensor";
  list.add(filling, {"zero", "fill", "exponential", "log_normal", "cauchy", "geometric", "random"});
  filling.traits = OpTrait::kDrawsOnDevice;
  list.add(filling, {"normal", "uniform"});
}

}  // namespace autopar::ops
