#include <algorithm>

#include "ops/op_list.hpp"
#include "ops/rules.hpp"

namespace autopar::ops {

namespace {

/// Operands without the tensors that `out` overloads write into.
std::vector<ValueId> operands_of(const OpCall& op) {
  std::vector<ValueId> found;
  const auto& arguments = op.node().op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].is_out()) continue;
    const auto here = op.tensors(static_cast<std::int32_t>(i));
    found.insert(found.end(), here.begin(), here.end());
  }
  return found;
}

enum class Reduction : std::uint8_t { kSum, kMean, kOther };

template <Reduction reduction>
BatchTyping reduce(const OpCall& op) {
  const auto operands = operands_of(op);
  std::int64_t rank = 0;
  for (const auto operand : operands) rank = std::max(rank, op.rank(operand));
  const auto shared = broadcast(op, operands, rank);
  const auto dims = named_dims(op, rank);
  if (!shared || !shared->is_batched() || !dims) return BatchTyping::mixes("it joins samples with other samples");
  if (std::find(dims->begin(), dims->end(), shared->dim) != dims->end()) {
    if (reduction == Reduction::kOther)
      return BatchTyping::mixes("it reduces over the batch and is neither a sum nor a mean");
    BatchTyping result = typed(op, BatchType::partial_sum());
    result.handling.scale_output = reduction == Reduction::kMean;
    return result;
  }
  const auto before = std::count_if(dims->begin(), dims->end(), [&](std::int64_t dim) { return dim < shared->dim; });
  const auto several = op.tensor("q");  // quantiles of several probabilities have an extra first dim
  const auto shift = several.valid() ? op.rank(several) : 0;
  return typed(op, shared->at_dim(shared->dim + shift - (op.flag("keepdim", false) ? 0 : before)));
}

/// max and min, also of two tensors.
BatchTyping extremum(const OpCall& op) {
  return op.overload() == "other" ? pointwise(op) : reduce<Reduction::kOther>(op);
}

}  // namespace

void add_reductions(OpList& list) {
  OpDef def;
  def.over_samples = reduce<Reduction::kOther>;
  def.sharding = shard_by_dims;
  def.treatment = kPerSample;
  def.summary = "along other dims than that of samples; mixes else";
  // Their backwards compare with the result.
  list.add(def, SavedTensors::kInputAndResult,
           {"var", "std", "var_mean", "std_mean", "norm", "linalg_vector_norm", "linalg_norm", "frobenius_norm", "amax",
            "amin", "prod", "quantile", "nanquantile", "aminmax", "linalg__powsum", "logsumexp"});
  list.add(def, SavedTensors::kNothing, {"any", "all", "argmax", "argmin"});
  list.add(def, SavedTensors::kIndices, {"median", "nanmedian", "mode", "kthvalue"});
  list.add(def, SavedTensors::kInputs, {"dist", "cosine_similarity", "pairwise_distance"});
  def.over_samples = extremum;
  list.add(def, SavedTensors::kInputAndResult, {"max", "min"});

  auto sum = def;
  sum.over_samples = reduce<Reduction::kSum>;
  sum.treatment = kSums;
  sum.summary = "over the batch a sum that slices add up; per sample along other dims";
  list.add(sum, SavedTensors::kNothing, {"count_nonzero"});
  list.add(sum, SavedTensors::kInput, {"nansum"});
  sum.over_sums = linear_in_first;
  list.add(sum, SavedTensors::kNothing, {"sum"});

  auto mean = sum;
  mean.over_samples = reduce<Reduction::kMean>;
  mean.summary = "over the batch a mean, divided by the global count; per sample along other dims";
  list.add(mean, SavedTensors::kNothing, {"mean"});
}

}  // namespace autopar::ops
