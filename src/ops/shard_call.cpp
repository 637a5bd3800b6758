#include <algorithm>
#include <utility>

#include <autopar/capture/shard_rule.hpp>

#include "ops/rules.hpp"

namespace autopar {

ShardCall::ShardCall(const OpGraph& graph, const std::vector<TensorLayout>& layouts, std::vector<BatchType>& types,
                     OpId id, std::vector<ValueId> sharded)
    : layouts_(layouts), types_(types), op_(graph, types, options_, id), sharded_(std::move(sharded)) {
  for (const auto value : sharded_) out_.needs[value] = slices(value);
}

bool ShardCall::is_sharded(ValueId value) const { return std::ranges::find(sharded_, value) != sharded_.end(); }

bool ShardCall::along_own_dim() const {
  const auto self = op_.first_tensor();
  return is_sharded(self) && ops::wrap_dim(op_.integer("dim", 0), op_.rank(self)) == slices(self).dim;
}

bool ShardCall::writes_whole() const {
  const auto at = op_.written_argument();
  if (at < 0) return false;
  const auto written = op_.tensors(at);
  return written.empty() || !is_sharded(written.front());
}

bool ShardCall::require(ValueId operand, std::int64_t dim, const UnitSlices& as) {
  if (dim < 0 || dim >= op_.rank(operand)) return true;
  const auto wanted = as.at_dim(dim);
  if (is_sharded(operand)) return slices(operand) == wanted;
  const auto size = op_.sizes(operand)[static_cast<std::size_t>(dim)];
  if (size == SizeExpr{0, 1}) return true;
  if (size != as.size_of(as.units)) return false;
  const auto [known, is_new] = out_.needs.try_emplace(operand, wanted);
  return known->second == wanted;
}

ShardedOp ShardCall::with(std::vector<TensorLayout> results, ShardedOp::Kernel kernel) {
  out_.in_slices = true;
  out_.kernel = kernel;
  out_.results = std::move(results);
  return out_;
}

ShardedOp ShardCall::of_one(const UnitSlices& result, ShardedOp::Kernel kernel) {
  return with(std::vector(op_.results().size(), TensorLayout::sharded(result)), kernel);
}

ShardedOp ShardCall::sum(ShardedOp::Kernel kernel) {
  return with(std::vector(op_.results().size(), TensorLayout::partial()), kernel);
}

ShardedOp ShardCall::by_dims() {
  const auto& layout = slices(sharded_.front());
  for (const auto value : sharded_) {
    if (slices(value).at_dim(0) != layout.at_dim(0)) return ShardedOp::whole();
  }
  for (const auto value : sharded_) types_[value.index()] = BatchType::batched(slices(value).dim);
  const auto typed = ops::type_over_samples(op_);
  for (const auto value : sharded_) types_[value.index()] = BatchType::replicated();
  if (writes_whole()) return ShardedOp::whole();
  if (typed.verdict != Verdict::kTyped || typed.handling.scale_output || typed.batch_norm || typed.count)
    return ShardedOp::whole();
  std::vector<TensorLayout> results;
  for (const auto& type : typed.outputs) {
    if (type.is(BatchKind::kPartialSum)) {
      results.push_back(TensorLayout::partial());
    } else if (type.is_batched() && type.outer == 1 && type.inner == 1) {
      results.push_back(TensorLayout::sharded(layout.at_dim(type.dim)));
    } else {
      return ShardedOp::whole();
    }
  }
  return with(std::move(results));
}

namespace ops {

ShardedOp shard_pointwise(ShardCall& call) {
  const auto& op = call.op();
  const auto to = static_cast<std::int64_t>(op.result_sizes().size());
  const auto first = call.sharded().front();
  const auto& own = call.slices(first);
  const auto result = own.at_dim(own.dim + to - op.rank(first));
  if (result.dim < 0 || call.writes_whole()) return ShardedOp::whole();
  for (const auto operand : op.tensors()) {
    if (!call.require(operand, result.dim - (to - op.rank(operand)), result)) return ShardedOp::whole();
  }
  return call.of_one(result);
}

ShardedOp shard_by_dims(ShardCall& call) { return call.by_dims(); }

}  // namespace ops

}  // namespace autopar
