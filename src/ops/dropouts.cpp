#include "ops/op_list.hpp"
#include "ops/rules.hpp"

namespace autopar::ops {

namespace {

BatchTyping drop(const OpCall& op) { return typed(op, op.type(op.first_tensor())); }

BatchTyping drop_channels(const OpCall& op) {
  if (op.type(op.first_tensor()).dim > 1) return BatchTyping::mixes("it drops the same channels in all samples");
  return drop(op);
}

bool drops(const OpCall& op) {
  const bool by_none = op.has("p") && op.number("p", 1) == 0;
  return op.flag("train", true) && !by_none;
}

/// The scaled mask, in the tensor's element type.
SavedBytes saved_mask(const OpCall& op) {
  const bool active = op.flag("train", true) && op.number("p", 1) != 0;
  return {{}, active ? bytes_of(op.graph(), op.results().front()) : Affine{}};
}

/// GPUs keep a mask of bytes.
SavedBytes saved_bytes(const OpCall& op) {
  auto saved = saved_mask(op);
  const bool in_bytes = op.on_cuda() && op.written_argument() < 0;
  if (in_bytes && saved.internal != Affine{}) saved.internal = elements(op.result_sizes());
  return saved;
}

}  // namespace

void add_dropouts(OpList& list) {
  OpDef def;
  def.over_samples = drop;
  def.draws = drops;
  def.saved = SavedTensors::kNothing;
  def.saved_by = saved_mask;
  def.sharding = shard_pointwise;
  def.treatment = kPerSample;
  def.summary = "draws keyed by the first sample of the slice";
  list.add(def, {"native_dropout"});
  def.autocast = AutocastRule::kNone;
  def.traits = OpTrait::kDrawsOnDevice;
  list.add(def, {"alpha_dropout"});
  auto bytes = def;
  bytes.saved_by = saved_bytes;
  list.add(bytes, {"dropout"});
  auto channels = def;
  channels.over_samples = drop_channels;
  channels.sharding = nullptr;
  list.add(channels, {"feature_dropout", "feature_alpha_dropout"});
}

}  // namespace autopar::ops
