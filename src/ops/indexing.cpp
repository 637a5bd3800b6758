#include <algorithm>

#include "ops/op_list.hpp"
#include "ops/rules.hpp"

namespace autopar::ops {

namespace {

/// Index tensors of index / index_put: one per dim of self, none for a dim that is taken whole.
struct AdvancedIndex {
  std::vector<ValueId> by_dim;
  std::int64_t first = -1;  ///< first indexed dim
  std::int64_t count = 0;   ///< indexed dims
  std::int64_t rank = 0;    ///< dims of the indices after broadcasting
  bool adjacent = true;     ///< indexed dims are neighbours: their result dims stay in place, else they come first
};

AdvancedIndex read_indices(const OpCall& op) {
  AdvancedIndex index;
  const auto at = op.position("indices");
  for (const auto& slot : op.node().inputs) {
    if (slot.position == at) index.by_dim = slot.values;
  }
  std::int64_t last = -1;
  for (std::size_t i = 0; i < index.by_dim.size(); ++i) {
    if (!index.by_dim[i].valid()) continue;
    const auto dim = static_cast<std::int64_t>(i);
    if (index.first < 0) index.first = dim;
    if (last >= 0 && dim != last + 1) index.adjacent = false;
    last = dim;
    ++index.count;
    index.rank = std::max(index.rank, op.rank(index.by_dim[i]));
  }
  return index;
}

bool is_mask(const OpCall& op, ValueId value) {
  const auto dtype = op.graph().value(value).dtype;
  return dtype == c10::ScalarType::Bool || dtype == c10::ScalarType::Byte;
}

// Type of self[indices]; if there is none, `why` gets the reason.
std::optional<BatchType> type_of_indexed(const OpCall& op, ValueId self, const AdvancedIndex& index, std::string& why) {
  std::vector<ValueId> tensors;
  bool sample_index = false;
  for (const auto value : index.by_dim) {
    if (!value.valid()) continue;
    if (is_mask(op, value)) {
      why = "a mask as index picks a number of elements that depends on data";
      return std::nullopt;
    }
    tensors.push_back(value);
    sample_index = sample_index || op.type(value).is(BatchKind::kSampleIndex);
  }
  const auto joint = broadcast(op, tensors, index.rank);
  if (!joint) {
    why = "its indices have samples in different dims";
    return std::nullopt;
  }
  const auto block = index.adjacent ? std::max<std::int64_t>(index.first, 0) : 0;  // first dim of the indices' result
  const auto& type = op.type(self);
  if (!type.has_samples()) {
    if (sample_index) {
      why = "the number of a sample within the batch picks from a shared tensor";
      return std::nullopt;
    }
    return joint->at_dim(block + joint->dim);
  }
  const auto own = static_cast<std::size_t>(type.dim);
  const bool own_indexed = own < index.by_dim.size() && index.by_dim[own].valid();
  if (!own_indexed) {
    if (joint->has_samples()) {
      why = "every sample picks from all samples";
      return std::nullopt;
    }
    if (!index.adjacent || type.dim > index.first) {
      std::int64_t before = 0;  // indexed dims before the batch dim
      for (std::size_t i = 0; i < own && i < index.by_dim.size(); ++i) before += index.by_dim[i].valid() ? 1 : 0;
      return type.at_dim(type.dim - before + index.rank);
    }
    return type;
  }
  const auto& picks = op.type(index.by_dim[own]);
  const bool every_own =
      picks.is(BatchKind::kSampleIndex) && picks.outer == 1 && picks.inner == 1 && type.outer == 1 && type.inner == 1;
  for (std::size_t i = 0; i < index.by_dim.size(); ++i) {
    if (i != own && index.by_dim[i].valid() && op.type(index.by_dim[i]).is(BatchKind::kSampleIndex)) {
      why = "the number of a sample within the batch picks along a dim that is not the batch's";
      return std::nullopt;
    }
  }
  if (!every_own) {
    why = "it picks samples by number";
    return std::nullopt;
  }
  return BatchType::batched(block + joint->dim, 1, 1);
}

BatchTyping index(const OpCall& op) {
  std::string why;
  const auto type = type_of_indexed(op, op.first_tensor(), read_indices(op), why);
  return type ? typed(op, *type) : BatchTyping::mixes(why);
}

/// x.index_put_({mask}, number): a masked fill. The mask has the samples of `self`, and the written values are the same
/// at every true element.
std::optional<BatchTyping> type_masked_fill(const OpCall& op, ValueId self, const AdvancedIndex& index) {
  if (index.count != 1 || !is_mask(op, index.by_dim[static_cast<std::size_t>(index.first)])) return std::nullopt;
  const auto mask = index.by_dim[static_cast<std::size_t>(index.first)];
  const auto values = op.tensor("values");
  const auto& type = op.type(self);
  const auto behind = op.rank(self) - index.first - op.rank(mask);  // dims of self that come after the mask's
  if (!type.is_batched() || !values.valid() || op.type(values).has_samples()) return std::nullopt;
  const auto& written = op.sizes(values);
  const auto chosen =
      static_cast<std::int64_t>(written.size()) - behind - 1;  // dim that runs over the true elements of the mask
  if (chosen >= 0 && written[static_cast<std::size_t>(chosen)] != SizeExpr{0, 1}) return std::nullopt;
  const bool covers_samples = type.dim >= index.first && type.dim < index.first + op.rank(mask);
  const bool same_samples =
      covers_samples ? op.type(mask) == type.at_dim(type.dim - index.first) : !op.type(mask).has_samples();
  if (!same_samples) return BatchTyping::mixes("its mask has samples in another dim");
  return typed(op, type);
}

BatchTyping index_put(const OpCall& op) {
  const auto self = op.first_tensor();
  const auto& type = op.type(self);
  const auto index = read_indices(op);
  if (const auto fill = type_masked_fill(op, self, index)) return *fill;
  std::string why;
  const auto place = type_of_indexed(op, self, index, why);
  if (!place) return BatchTyping::mixes(why);
  if (!type.is_batched()) return BatchTyping::mixes("every sample writes into a shared tensor");
  const auto values = op.tensor("values");
  if (values.valid() && op.type(values).has_samples()) {
    const auto rank = op.rank(self) - index.count + index.rank;
    const auto& given = op.type(values);
    if (!given.is_batched() || given.dim + rank - op.rank(values) != place->dim || !given.same_layout(*place)) {
      return BatchTyping::mixes("samples of the values go to other samples");
    }
  }
  return typed(op, type);
}

BatchTyping index_select(const OpCall& op) {
  const auto self = op.first_tensor();
  const auto index = op.tensor("index");
  const auto& type = op.type(self);
  if (!op.has("dim")) {  // take: of the flattened tensor
    if (type.has_samples() || !op.type(index).is_batched())
      return BatchTyping::mixes("it picks from the flattened batch");
    return typed(op, op.type(index));
  }
  const auto dim = wrap_dim(op.integer("dim", 0), op.rank(self));
  if (!type.has_samples() && op.type(index).is_batched()) {
    return typed(op, op.type(index).at_dim(dim));
  }
  if (type.is_batched() && !op.type(index).has_samples() && dim != type.dim) return typed(op, type);
  return BatchTyping::mixes("it picks samples by number");
}

// Works position by position in all dims but one. Exact if all operands have their samples in the same other dim.
BatchTyping gather(const OpCall& op) {
  const auto self = op.first_tensor();
  const auto index = op.tensor(op.has("index") ? "index" : "indices");
  if (!index.valid() || !op.has("dim") || op.is_none("dim"))
    return BatchTyping::mixes("it picks from the flattened batch");
  const auto dim = wrap_dim(op.integer("dim", 0), op.rank(self));
  const auto& type = op.type(self);
  if (!type.is_batched() || op.type(index) != type || type.dim == dim) {
    return BatchTyping::mixes("it picks samples by number");
  }
  return typed(op, type);
}

BatchTyping type_sum_by_index(const OpCall& op, const std::string& source_name) {
  const auto self = op.first_tensor();
  const auto index = op.tensor("index");
  const auto source = op.tensor(source_name);
  const auto dim = wrap_dim(op.integer("dim", 0), op.rank(self));
  const auto index_dim = op.rank(index) <= 1 ? dim : static_cast<std::int64_t>(op.type(index).dim);
  const bool all_added = source.valid() && op.type(source).is_batched() && op.type(source).dim == dim &&
                         op.type(index).is_batched() && index_dim == dim && op.type(index).same_layout(op.type(source));
  if (!all_added || op.type(self).has_samples() || !op.is_floating(self)) {
    return BatchTyping::mixes("samples add into one another");
  }
  BatchTyping result = typed(op, BatchType::partial_sum());
  result.handling.weighted_arguments = {0};
  return result;
}

BatchTyping scatter(const OpCall& op) {
  const auto self = op.first_tensor();
  const auto index = op.tensor("index");
  const auto source = op.tensor("src");
  const auto dim = wrap_dim(op.integer("dim", 0), op.rank(self));
  const auto& type = op.type(self);
  const bool adds = op.base_name() == "scatter_add";
  if (adds && !type.has_samples()) return type_sum_by_index(op, "src");
  if (!type.is_batched() || type.dim == dim || op.type(index) != type || (source.valid() && op.type(source) != type)) {
    return BatchTyping::mixes("it writes samples by number");
  }
  return typed(op, type);
}

// index_add, index_copy and index_fill, which has no source.
BatchTyping index_add(const OpCall& op) {
  const auto self = op.first_tensor();
  const auto index = op.tensor("index");
  const auto source = op.tensor("source");
  const auto dim = wrap_dim(op.integer("dim", 0), op.rank(self));
  const auto& type = op.type(self);
  if (!type.has_samples() && op.base_name() == "index_add") return type_sum_by_index(op, "source");
  const auto value = op.tensor("value");
  if (value.valid() && op.type(value).has_samples()) return BatchTyping::mixes("it fills with the value of one sample");
  const bool same_samples = !source.valid() || op.type(source) == type;
  if (!type.is_batched() || type.dim == dim || op.type(index).has_samples() || !same_samples) {
    return BatchTyping::mixes("it writes samples by number");
  }
  return typed(op, type);
}

std::vector<PickedDim> picks_by_dims(const OpCall& op) {
  std::vector<PickedDim> picked;
  const auto& sizes = op.sizes(op.first_tensor());
  const auto by_dim = read_indices(op).by_dim;
  for (std::size_t dim = 0; dim < std::min(by_dim.size(), sizes.size()); ++dim) {
    if (by_dim[dim].valid()) picked.push_back({by_dim[dim], sizes[dim]});
  }
  return picked;
}

std::vector<PickedDim> picks_along_dim(const OpCall& op) {
  const auto self = op.first_tensor(), by = op.tensor(op.has("index") ? "index" : "indices");
  const bool has_dim = op.has("dim") && !op.is_none("dim");
  if (!by.valid() || !self.valid() || (!has_dim && op.rank(self) != 1)) return {};
  const auto dim = wrap_dim(op.integer("dim", 0), op.rank(self));
  if (dim < 0 || dim >= op.rank(self)) return {};
  return {{by, op.sizes(self)[static_cast<std::size_t>(dim)]}};
}

}  // namespace

void add_indexing(OpList& list) {
  OpDef def;
  def.saved = SavedTensors::kIndices;
  def.picks = picks_along_dim;
  def.treatment = kPerSample;
  def.summary =
      "each sample picks from, or writes into, itself or what all share; samples added into what all "
      "share are a sum; mixes if samples are picked by number";
  const auto add = [&](auto rule, std::initializer_list<std::string_view> names) {
    def.over_samples = rule;
    list.add(def, names);
  };
  add(index_add, {"index_add", "index_copy", "index_fill"});
  add(scatter, {"scatter", "scatter_add"});
  def.saved = SavedTensors::kInputAndResult;
  add(index_add, {"index_reduce"});
  add(scatter, {"scatter_reduce"});
  def.saved = SavedTensors::kIndices;

  def.traits = OpTrait::kTakesSampleNumbers;
  def.picks = picks_by_dims;
  add(index_put, {"index_put"});
  def.traits = OpTrait::kTakesSampleNumbers | OpTrait::kPicksElements | OpTrait::kReadsRows;
  def.over_sums = linear_in_first;
  def.sharding = shard_by_dims;
  add(index, {"index"});
  def.traits = OpTrait::kPicksElements | OpTrait::kReadsRows;
  def.picks = picks_along_dim;
  add(index_select, {"index_select", "take"});
  def.sharding = nullptr;
  add(gather, {"gather", "take_along_dim"});
}

}  // namespace autopar::ops
