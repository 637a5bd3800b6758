#include "ops/op_list.hpp"
#include "ops/rules.hpp"

namespace autopar::ops {

namespace {

/// Samples of the first `data` operands; weights have none.
template <std::size_t data>
BatchTyping linear(const OpCall& op) {
  const auto operands = op.tensors();
  for (std::size_t i = data; i < operands.size(); ++i) {
    if (op.type(operands[i]).has_samples()) return BatchTyping::mixes("its weight has samples");
  }
  const auto rank = static_cast<std::int64_t>(op.result_sizes().size());
  const auto shared = broadcast(op, {operands.begin(), operands.begin() + static_cast<std::ptrdiff_t>(data)}, rank);
  if (!shared || !shared->is_batched() || shared->dim == rank - 1)
    return BatchTyping::mixes("it multiplies along the batch");
  return typed(op, *shared);
}

template <std::size_t data>
std::optional<Affine> flops_of_linear(const OpCall& op) {
  const auto operands = op.tensors();
  auto inner = static_cast<double>(last_size(op.sizes(operands[0])));
  if (data == 2) inner *= static_cast<double>(last_size(op.sizes(operands[1])));
  return elements(op.result_sizes()) * (2 * inner);
}

std::vector<ValueId> without_bias(const OpCall& op) {
  auto operands = op.tensors();
  if (operands.size() == 3) operands.pop_back();
  return operands;
}

SavedBytes saved_by_linear(const OpCall& op) { return {factors_to_keep(op, without_bias(op)), {}}; }

ShardedOp shard_linear(ShardCall& call) {
  const auto& op = call.op();
  const auto x = op.tensor("input"), weight = op.tensor("weight"), bias = op.tensor("bias");
  const auto last = op.rank(x) - 1;
  if (call.is_sharded(weight) && call.slices(weight).dim == 0) {
    const bool fits = !call.is_sharded(x) && (!bias.valid() || call.require(bias, 0, call.slices(weight)));
    return fits ? call.of_one(call.slices(weight).at_dim(last)) : ShardedOp::whole();
  }
  const bool by_inputs = call.is_sharded(weight) || (call.is_sharded(x) && call.slices(x).dim == last);
  if (!by_inputs) {  // the layer works on the last dim of its input alone
    const bool others_whole = !call.is_sharded(weight) && !call.is_sharded(bias);
    return call.is_sharded(x) && others_whole ? call.of_one(call.slices(x)) : ShardedOp::whole();
  }
  const auto& units = call.is_sharded(weight) ? call.slices(weight) : call.slices(x);
  if (call.is_sharded(bias) || !call.require(x, last, units) || !call.require(weight, 1, units))
    return ShardedOp::whole();
  return call.sum(bias.valid() ? ShardedOp::Kernel::kBiasOnce : ShardedOp::Kernel::kAsItIs);
}

}  // namespace

void add_linear(OpList& list) {
  OpDef def;
  def.op_class = OpClass::kMatmul;
  def.traits = OpTrait::kReadsWeights | OpTrait::kSharesElementType;
  def.saved = SavedTensors::kInputs;
  def.over_samples = linear<1>;
  def.flops = flops_of_linear<1>;
  def.backward_products = [](const OpCall& op) { return products_needed(op, without_bias(op)); };
  def.saved_by = saved_by_linear;
  def.sharding = shard_linear;
  def.layer = LayerForm{.weight = 1, .outputs = 0, .bias = 2, .always = true};
  def.treatment = kSums;
  def.summary =
      "products: per sample where the dim of samples stays, a sum where it is summed over, mixes where "
      "samples multiply samples";
  list.add(def, {"linear"});

  OpDef two;
  two.op_class = OpClass::kMatmul;
  two.traits = OpTrait::kReadsWeights;
  two.saved = SavedTensors::kInputs;
  two.over_samples = linear<2>;
  two.flops = flops_of_linear<2>;
  two.treatment = def.treatment;
  two.summary = def.summary;
  list.add(two, {"bilinear"});
}

}  // namespace autopar::ops
