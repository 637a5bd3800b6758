#include <algorithm>

#include "ops/op_list.hpp"
#include "ops/rules.hpp"

namespace autopar::ops {

namespace {

BatchTyping attention(const OpCall& op) {
  const auto rank = static_cast<std::int64_t>(op.result_sizes().size());
  const auto shared = broadcast(op, op.tensors(), rank);
  if (!shared || !shared->is_batched() || shared->dim >= rank - 2)
    return BatchTyping::mixes("samples attend to one another");
  return typed(op, *shared);
}

bool drops_scores(const OpCall& op) { return !op.has("dropout_p") || op.number("dropout_p", 1) != 0; }

/// Whether it runs as products and a softmax, because libtorch has no fused kernel for these arguments.
// libtorch's own conditions: sdp_utils_cpp for CPUs, sdp_utils for CUDA, whose memory-efficient kernel takes masks,
// dropout and values of any width, but no double precision.
bool attends_by_products(const OpCall& op) {
  const auto operands = op.tensors();
  if (op.on_cuda()) {
    const auto dtype = dtype_of(op.graph().value(operands[0]).dtype);
    return op.sizes(operands[0]).size() != 4 || dtype == DType::kF64;
  }
  const auto width = last_size(op.sizes(operands[0]));
  for (const std::size_t other : {1, 2}) {
    if (last_size(op.sizes(operands[other])) != width) return true;
  }
  const auto mask = op.tensor("attn_mask");
  return op.number("dropout_p", 0) > 0 || op.sizes(operands[0]).size() != 4 ||
         (mask.valid() && requires_grad(op, mask));
}

/// Bytes internal to the op: saved for the backward, and used while each direction runs.
struct AttentionMemory {
  Affine saved, forward, backward;
};

AttentionMemory memory_of_attention(const OpCall& op) {
  const auto operands = op.tensors();
  const auto& query = op.sizes(operands[0]);
  const auto& key = op.sizes(operands[1]);
  const auto result = op.results().front();
  if (!attends_by_products(op)) {
    const auto row = std::max(4.0, static_cast<double>(size_of(dtype_of(op.graph().value(result).dtype)).value()));
    const auto rows = rows_of(query) * row;
    if (!op.on_cuda()) return {rows, {}, {}};
    return {rows, {}, elements(query) * 4.0 + rows};  // its kernels add up the queries' gradient in single precision
  }
  const auto keys = static_cast<double>(key[key.size() - 2].at(1));
  const auto number = static_cast<double>(size_of(dtype_of(op.graph().value(operands[0]).dtype)).value());
  const auto scores = rows_of(query) * (keys * number);
  const auto scaled = bytes_of(op.graph(), operands[0]) + bytes_of(op.graph(), operands[1]);
  const bool drops = op.number("dropout_p", 0) > 0;
  return {scores * (drops ? 3.0 : 1.0) + scaled, scores * 2.0, scores * 2.0};
}

/// Counts the scores, and their product with the values.
std::optional<Affine> flops_of_attention(const OpCall& op) {
  const auto operands = op.tensors();
  const auto& key = op.sizes(operands[1]);
  const auto keys = static_cast<double>(key[key.size() - 2].at(1));
  return (elements(op.sizes(operands[0])) + elements(op.result_sizes())) * (2 * keys);
}

/// Products save scaled copies of the queries and keys, and nothing of the mask.
SavedBytes saved_by_attention(const OpCall& op) {
  SavedBytes saved;
  const auto operands = op.tensors();
  const bool by_products = attends_by_products(op);
  for (std::size_t i = by_products ? 2 : 0; i < std::min<std::size_t>(operands.size(), by_products ? 3 : 4); ++i)
    saved.values.push_back(operands[i]);
  if (!by_products) saved.values.push_back(op.results().front());
  saved.internal = memory_of_attention(op).saved;
  return saved;
}

OpWorkspace workspace_of_attention(const OpCall& op) {
  const auto memory = memory_of_attention(op);
  return {memory.forward, memory.backward};
}

/// How many query heads share one key and value head.
std::int64_t heads_of_key(const OpCall& op, std::int64_t from_right) {
  const auto query = op.tensor("query"), key = op.tensor("key");
  if (!op.flag("enable_gqa", false) || from_right != 3 || op.rank(query) < 3 || op.rank(key) < 3) return 1;
  const auto dim = [&](ValueId operand) { return op.sizes(operand)[static_cast<std::size_t>(op.rank(operand) - 3)]; };
  const auto group = quotient(dim(query), dim(key));
  return group && !group->depends_on_batch() && dim(key) != SizeExpr{0, 1} ? group->fixed : 1;
}

/// Shards heads, or the dims in front of them. If several query heads share one key head (grouped-query attention), a
/// unit is one such group. A single key head for all queries is whole on every shard.
ShardedOp shard_heads(ShardCall& call) {
  const auto& op = call.op();
  const auto query = op.tensor("query"), mask = op.tensor("attn_mask"), first = call.sharded().front();
  const auto from_right = op.rank(first) - call.slices(first).dim;
  if (first == mask || from_right < 3) return ShardedOp::whole();
  const auto group = heads_of_key(op, from_right);
  const auto heads = call.slices(first).at_dim(op.rank(query) - from_right).times(first == query ? 1 : group);
  const auto of_keys = heads.over(group);
  if (heads.dim < 0 || !of_keys || !call.require(query, heads.dim, heads)) return ShardedOp::whole();
  for (const auto* name : {"key", "value"}) {
    const auto operand = op.tensor(name);
    if (op.rank(operand) != op.rank(query) || !call.require(operand, heads.dim, *of_keys)) return ShardedOp::whole();
  }
  if (mask.valid() && !call.require(mask, op.rank(mask) - from_right, heads)) return ShardedOp::whole();
  return call.needs(query) ? call.of_one(heads) : ShardedOp::whole();
}

}  // namespace

void add_attention(OpList& list) {
  OpDef def;
  def.op_class = OpClass::kAttention;
  def.traits = OpTrait::kDrawsOnDevice | OpTrait::kReadsWeights;
  def.over_samples = attention;
  def.draws = drops_scores;
  def.flops = flops_of_attention;
  // Fused kernels recompute the scores.
  def.backward_products = [](const OpCall& op) { return attends_by_products(op) ? 2 : 2.5; };
  def.saved_by = saved_by_attention;
  def.keeps_result = true;
  def.workspace = workspace_of_attention;
  def.sharding = shard_heads;
  def.treatment = kPerSample;
  def.summary = "rows of a sample with rows of the same sample; mixes else";
  list.add(def, {"scaled_dot_product_attention"});
}

}  // namespace autopar::ops
