#include "ops/op_list.hpp"
#include "ops/rules.hpp"

namespace autopar::ops {

namespace {

BatchTyping rows(const OpCall& op) {
  const auto self = op.first_tensor();
  const auto& type = op.type(self);
  if (wrap_dim(op.integer("dim", 0), op.rank(self)) != type.dim)
    return BatchTyping::mixes("its rows run over the batch");
  return typed(op, type);
}

/// Multiplies one half of the blocks by gates from the other half.
ShardedOp shard_glu(ShardCall& call) {
  if (!call.along_own_dim()) return call.by_dims();
  auto half = call.slices(call.op().first_tensor());
  const auto blocks = quotient(half.outer, {0, 2});
  if (!blocks) return ShardedOp::whole();
  half.outer = *blocks;
  return call.of_one(half);
}

}  // namespace

void add_rows_of_dims(OpList& list) {
  OpDef def;
  def.over_samples = along_dims;
  def.sharding = shard_by_dims;
  def.treatment = kPerSample;
  def.summary = "along other dims than that of samples; mixes else";
  list.add(def, SavedTensors::kResult, {"softmax", "_softmax", "log_softmax", "_log_softmax", "_safe_softmax"});
  list.add(def, SavedTensors::kInputAndResult, {"cumprod", "logcumsumexp"});
  list.add(def, SavedTensors::kIndices, {"cummax", "cummin", "sort", "topk"});
  list.add(def, SavedTensors::kInputs, {"cross", "linalg_cross"});
  list.add(def, SavedTensors::kNothing,
           {"cumsum", "argsort", "flip", "roll", "rot90", "diff", "searchsorted", "fft_fft", "fft_ifft", "fft_rfft",
            "fft_irfft", "fft_fft2", "fft_ifft2", "fft_rfft2", "fft_irfft2"});
  auto transform = def;
  transform.over_sums = linear_in_all;
  list.add(transform, SavedTensors::kNothing, {"_fft_c2c", "_fft_r2c", "_fft_c2r"});
  auto gated = def;
  gated.sharding = shard_glu;
  gated.traits = OpTrait::kTakesApart;
  list.add(gated, SavedTensors::kInput, {"glu"});
  auto windows = def;
  windows.op_class = OpClass::kView;
  list.add(windows, SavedTensors::kNothing, {"unfold"});

  auto each_row = def;
  each_row.over_samples = rows;
  each_row.sharding = nullptr;
  each_row.summary = "along the dim of samples; mixes else";
  list.add(each_row, SavedTensors::kInput, {"renorm"});
}

}  // namespace autopar::ops
