#include "ops/op_list.hpp"
#include "ops/rules.hpp"

namespace autopar::ops {

namespace {

BatchTyping copy_value(const OpCall& op) {
  const auto& self = op.type(op.first_tensor());
  return typed(op, self.has_samples() ? self : type_by_sizes(op.result_sizes()));
}

BatchTyping copy_of_sum(const OpCall& op) {
  const auto self = op.first_tensor();
  const bool keeps_value = !op.is_floating(self) || op.is_floating(op.results().front());
  return linear_in_sum(op, sum_operands(op).first_only() && keeps_value);
}

BatchTyping copy_into(const OpCall& op) {
  const auto self = op.first_tensor();
  const auto operands = op.tensors();
  if (operands.size() < 2) return BatchTyping::mixes("what it copies is not known");
  const auto source = operands[1];
  const auto from = op.type(source);
  const auto& self_type = op.type(self);
  if (!from.has_samples()) {
    return typed(op, self_type.has_samples() ? BatchType::batched(self_type.dim, self_type.outer, self_type.inner)
                                             : type_by_sizes(op.sizes(self)));
  }
  return typed(op, from.at_dim(from.dim + op.rank(self) - op.rank(source)));
}

BatchTyping copy_sum_into(const OpCall& op) {
  const auto operands = op.tensors();
  if (operands.size() == 2 && op.type(operands[1]).is(BatchKind::kReplicated))
    return typed(op, BatchType::replicated());
  return linear_in_sum(op, op.is_floating(op.results().front()) || !op.is_floating(operands[1]));
}

}  // namespace

OpDef definition_of_copies() {
  OpDef def;
  def.kind = OpKind::kCopy;
  def.traits = OpTrait::kKeepsSampleNumbers | OpTrait::kKeepsIntegers;
  def.saved = SavedTensors::kNothing;
  def.over_samples = copy_value;
  def.over_sums = copy_of_sum;
  def.sharding = shard_pointwise;
  def.treatment = kPerSample;
  def.summary = "the same values";
  return def;
}

void add_copies(OpList& list) {
  const OpDef def = definition_of_copies();
  list.add(def,
           {"clone", "to", "type_as", "detach_copy", "lift_fresh_copy", "cpu", "cuda", "_cast_Float", "_cast_Double",
            "_cast_Long", "_cast_Half", "pin_memory", "_autocast_to_full_precision", "_autocast_to_reduced_precision"});
  // Whether it copies depends on its operand's memory layout, which is only known at run time.
  auto layout = def;
  layout.autocast = AutocastRule::kNone;
  list.add(layout, {"contiguous"});
  auto conversion = def;
  conversion.low_arguments = 0;
  list.add(conversion, {"_to_copy"});
  auto view = def;
  view.op_class = OpClass::kView;
  list.add(view, {"detach", "alias", "lift", "lift_fresh", "requires_grad"});

  auto into = def;
  into.kind = OpKind::kFill;
  into.over_samples = copy_into;
  into.over_sums = copy_sum_into;
  into.summary = "overwrites a tensor";
  list.add(into, {"copy"});
}

}  // namespace autopar::ops
