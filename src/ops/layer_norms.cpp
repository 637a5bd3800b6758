#include "ops/norms.hpp"

#include <algorithm>

#include "ops/op_list.hpp"
#include "ops/rules.hpp"

namespace autopar::ops {

namespace {

BatchTyping layer_norm(const OpCall& op) {
  const auto operands = op.tensors();
  const auto& type = op.type(operands.front());
  const auto residual = op.tensor("residual");  // second addend of a norm of a sum
  if (residual.valid() && op.type(residual) != type) return BatchTyping::mixes("its addends differ in their samples");
  for (std::size_t i = 1; i < operands.size(); ++i) {
    if (operands[i] != residual && op.type(operands[i]).has_samples())
      return BatchTyping::mixes("its weight has samples");
  }
  const auto shape = op.integers("normalized_shape");
  if (!shape || type.dim >= op.rank(operands.front()) - static_cast<std::int64_t>(shape->size())) {
    return BatchTyping::mixes("it normalises over the batch");
  }
  return typed(op, type);
}

}  // namespace

SavedBytes saved_by_layer_norm(const OpCall& op) {
  const auto input = op.first_tensor();
  double width = 1;
  const auto shape = op.integers("normalized_shape").value_or(std::vector<std::int64_t>{});
  for (const auto size : shape) width *= static_cast<double>(size);
  const auto statistic = statistic_bytes(op.graph().value(op.results().front()).dtype);
  return {{input}, elements(op.sizes(input)) * (2 * statistic / std::max(width, 1.0))};
}

void add_layer_norms(OpList& list) {
  OpDef def;
  def.over_samples = layer_norm;
  def.saved_by = saved_by_layer_norm;
  def.saved = SavedTensors::kInput;
  def.sharding = shard_by_dims;
  def.treatment = kPerSample;
  def.summary = "works on its last dims; mixes if one of them is that of samples";
  list.add(def, {"native_layer_norm", "rms_norm"});
  def.autocast = AutocastRule::kNone;
  list.add(def, {"layer_norm"});
}

}  // namespace autopar::ops
