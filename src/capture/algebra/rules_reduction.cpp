#include <algorithm>

#include "capture/algebra/op_context.hpp"

namespace autopar::algebra {
namespace {

/// Dims that an op works along; all dims if none is named.
std::optional<std::vector<std::int64_t>> dims_of(const OpContext& op, std::int64_t rank) {
  for (const auto* name : {"dim", "dims", "dimension"}) {
    const auto at = op.position(name);
    if (at < 0) continue;
    auto dims = op.integers(name);
    if (!dims && !op.node().args[static_cast<std::size_t>(at)].isNone()) return std::nullopt;
    if (!dims || dims->empty()) break;
    for (auto& dim : *dims) dim = wrap_dim(dim, rank);
    return dims;
  }
  if (op.base_name() == "searchsorted") {  // one sorted row for all, or one for each row of numbers
    const auto sorted = op.first_tensor();
    if (op.rank(sorted) == 1 && !op.type(sorted).has_samples()) return std::vector<std::int64_t>{};
    return std::vector<std::int64_t>{rank - 1};
  }
  if (op.base_name() == "pairwise_distance") return std::vector<std::int64_t>{rank - 1};
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < rank; ++i) all.push_back(i);
  return all;
}

/// Without what `out` overloads write into.
std::vector<ValueId> operands_of(const OpContext& op) {
  std::vector<ValueId> found;
  const auto& arguments = op.node().op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].is_out()) continue;
    const auto here = op.tensors(static_cast<std::int32_t>(i));
    found.insert(found.end(), here.begin(), here.end());
  }
  return found;
}

bool is_two_operand(const OpContext& op) {
  return (op.base_name() == "max" || op.base_name() == "min") && op.overload() == "other";
}

RuleResult type_pointwise(const OpContext& op) {
  auto operands = op.tensors();
  const auto data = static_cast<std::size_t>(op.traits().parameter);
  if (data != 0) {
    for (std::size_t i = data; i < operands.size(); ++i) {
      if (op.type(operands[i]).has_samples()) return RuleResult::mixes("an operand that all samples share has samples");
    }
    operands.resize(std::min(operands.size(), data));
  }
  const auto rank = static_cast<std::int64_t>(op.result_sizes().size());
  const auto shared = broadcast(op, operands, rank);
  if (!shared) return RuleResult::mixes("it joins samples with other samples");
  if (!shared->has_samples()) return RuleResult::mixes("its result grows with the batch, its operands do not");
  return typed(op, *shared);
}

RuleResult type_along_dims(const OpContext& op) {
  const auto operands = op.tensors();
  std::int64_t rank = 0;
  for (const auto operand : operands) rank = std::max(rank, op.rank(operand));
  const auto shared = broadcast(op, operands, rank);
  const auto dims = dims_of(op, rank);
  if (!shared || !dims) return RuleResult::mixes("it joins samples with other samples");
  if (std::find(dims->begin(), dims->end(), shared->dim) != dims->end()) {
    return RuleResult::mixes("it works along the batch");
  }
  return typed(op, *shared);
}

RuleResult type_reduce(const OpContext& op) {
  const auto operands = operands_of(op);
  std::int64_t rank = 0;
  for (const auto operand : operands) rank = std::max(rank, op.rank(operand));
  const auto shared = broadcast(op, operands, rank);
  const auto dims = dims_of(op, rank);
  if (!shared || !shared->is_batched() || !dims) return RuleResult::mixes("it joins samples with other samples");
  const auto family = op.traits().family;
  if (std::find(dims->begin(), dims->end(), shared->dim) != dims->end()) {
    if (family == OpFamily::kReduce)
      return RuleResult::mixes("it reduces over the batch and is neither a sum nor a mean");
    RuleResult result = typed(op, BatchType::partial_sum());
    result.handling.scale_output = family == OpFamily::kReduceMean;
    return result;
  }
  const auto before = std::count_if(dims->begin(), dims->end(), [&](std::int64_t dim) { return dim < shared->dim; });
  const auto several = op.tensor("q");  // quantiles of several probabilities are a first dim of their own
  const auto shift = several.valid() ? op.rank(several) : 0;
  return typed(op, shared->at_dim(shared->dim + shift - (op.flag("keepdim", false) ? 0 : before)));
}

RuleResult type_rows(const OpContext& op) {
  const auto self = op.first_tensor();
  const auto& type = op.type(self);
  if (wrap_dim(op.integer("dim", 0), op.rank(self)) != type.dim)
    return RuleResult::mixes("its rows run over the batch");
  return typed(op, type);
}

RuleResult type_append_dim(const OpContext& op) {
  const auto& type = op.type(op.first_tensor());
  return type.is_batched() ? typed(op, type) : RuleResult::mixes("it numbers samples");
}

}  // namespace

RuleResult type_reduction_op(const OpContext& op) {
  if (is_two_operand(op)) return type_pointwise(op);
  switch (op.traits().family) {
    case OpFamily::kPointwise:
      return type_pointwise(op);
    case OpFamily::kAlongDims:
      return type_along_dims(op);
    case OpFamily::kRows:
      return type_rows(op);
    case OpFamily::kAppendDim:
      return type_append_dim(op);
    default:
      return type_reduce(op);
  }
}

}  // namespace autopar::algebra
