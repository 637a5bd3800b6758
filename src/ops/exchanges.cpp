#include "capture/ir/collectives.hpp"
#include "capture/ir/shard_moves.hpp"
#include "ops/op_list.hpp"
#include "ops/rules.hpp"

namespace autopar::ops {

namespace {

BatchTyping as_its_operand(const OpCall& op) { return typed(op, op.type(op.first_tensor())); }

BatchTyping completed_sum(const OpCall& op) {
  BatchTyping result = typed(op, BatchType::replicated());
  result.handling.collective = ir::collective_named(op.node().op.schema().name());
  return result;
}

}  // namespace

/// Exchanges between ranks inside a program: collectives over replicas, and moves between tensor shards.
void add_exchanges(OpList& list) {
  OpDef collective;
  collective.saved = SavedTensors::kNothing;
  collective.over_samples = as_its_operand;
  collective.over_sums = completed_sum;
  collective.autocast = AutocastRule::kNone;
  collective.treatment = kMixes;
  collective.summary = "whatever the dims: one micro-batch and one replica";
  for (const auto& row : ir::kCollectives) {
    collective.name = row.name;
    list.add(collective);
  }
  const auto copy = definition_of_copies();
  auto move = copy;
  for (const auto name : ir::kShardMoves) {
    move.name = name;
    move.traits = copy.traits;
    if (name == name_of(ir::ShardMove::kAllReduce)) move.traits = move.traits | OpTrait::kPassesGradient;
    list.add(move);
  }
}

}  // namespace autopar::ops
