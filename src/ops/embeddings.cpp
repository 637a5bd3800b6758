#include "ops/op_list.hpp"
#include "ops/rules.hpp"

namespace autopar::ops {

namespace {

BatchTyping lookup(const OpCall& op) {
  const auto weight = op.tensor("weight");
  const auto indices = op.tensor("indices");
  if (op.flag("scale_grad_by_freq", false))
    return BatchTyping::mixes("its gradient counts how often the batch uses a row");
  if (op.type(weight).has_samples() || !op.type(indices).is_batched()) {
    return BatchTyping::mixes("it looks samples up by number");
  }
  return typed(op, op.type(indices));
}

// No op may read the result that numbers each entry's bag, since it counts bags of the slice.
BatchTyping bags(const OpCall& op) {
  const auto indices = op.tensor("indices");
  const auto& type = op.type(indices);
  const auto entry_weights = op.tensor("per_sample_weights");
  if (op.flag("scale_grad_by_freq", false))
    return BatchTyping::mixes("its gradient counts how often the batch uses a row");
  if (op.type(op.tensor("weight")).has_samples() || !type.is_batched() || type.outer != 1 || op.rank(indices) != 1) {
    return BatchTyping::mixes("it looks samples up by number");
  }
  const auto offsets = op.tensor("offsets");
  const auto maker = offsets.valid() ? op.graph().value(offsets).definer : OpId::none();
  const auto steps_by_bags = [&] {
    const OpCall range(op.graph(), {}, op.options(), maker);
    return range.expression("step") == SizeExpr{0, type.inner};
  };
  const bool numbered = maker.valid() && op.type(offsets).is(BatchKind::kRowStart) && steps_by_bags();
  if (!numbered || op.flag("include_last_offset", false)) {
    return BatchTyping::mixes("where its bags begin is not known; give it indices of [samples, entries]");
  }
  if (entry_weights.valid() && op.type(entry_weights) != type)
    return BatchTyping::mixes("its weights are not one an entry");
  BatchTyping result = typed(op, BatchType::batched(0));
  for (std::size_t k = 1; k < result.outputs.size(); ++k) {
    result.outputs[k] = type_by_sizes(op.result_sizes(k));
    if (result.outputs[k].is_batched() && k == 1) result.outputs[k].kind = BatchKind::kSampleIndex;
  }
  return result;
}

std::vector<PickedDim> picks_rows(const OpCall& op) {
  const auto& table = op.sizes(op.tensor("weight"));
  return table.empty() ? std::vector<PickedDim>{} : std::vector<PickedDim>{{op.tensor("indices"), table.front()}};
}

std::string sparse_fault(const OpCall& op) {
  if (!op.flag("sparse", false)) return {};
  return "sparse gradients cannot be summed over replicas; use an embedding with sparse = false";
}

void write_gradient_rows(const OpCall& op, WorkItem& item) {
  if (is_differentiable(op)) item.backward.bytes += bytes_of(op.graph(), op.first_tensor()) * 2;
}

ShardedOp shard_table(ShardCall& call) {
  const auto& op = call.op();
  const auto weight = op.tensor("weight"), indices = op.tensor("indices");
  if (!call.is_sharded(weight) || call.is_sharded(indices)) return ShardedOp::whole();
  const auto& own = call.slices(weight);
  if (own.dim == 1) return call.of_one(own.at_dim(op.rank(indices)));
  const bool counts = op.flag("scale_grad_by_freq", false) || op.flag("sparse", false);
  if (counts || !own.is_plain()) return ShardedOp::whole();
  return call.sum(ShardedOp::Kernel::kTogether);
}

/// Workspace of a sharded table: rows of other shards are set to zero in the result and in a copy of its gradient.
std::optional<Affine> exchanged(const OpCall& op) {
  constexpr double kBytesOfIndex = 3 * sizeof(std::int64_t);
  return bytes_of(op.graph(), op.results().front()) + elements(op.sizes(op.tensor("indices"))) * kBytesOfIndex;
}

}  // namespace

void add_embeddings(OpList& list) {
  OpDef def;
  def.saved = SavedTensors::kIndices;
  def.picks = picks_rows;
  def.fault = sparse_fault;
  def.treatment = kPerSample;
  def.summary =
      "each sample picks from, or writes into, itself or what all share; samples added into what all "
      "share are a sum; mixes if samples are picked by number";
  auto table = def;
  table.over_samples = lookup;
  table.traits = OpTrait::kReadsRows | OpTrait::kReadsWeights;
  table.work = write_gradient_rows;
  table.sharding = shard_table;
  table.exchanged = exchanged;
  table.table = 0;
  list.add(table, {"embedding"});
  auto bag = def;
  bag.over_samples = bags;
  bag.traits = OpTrait::kTakesRowStarts;
  bag.autocast = AutocastRule::kNone;
  list.add(bag, {"embedding_bag"});
}

}  // namespace autopar::ops
