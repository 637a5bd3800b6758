#include <limits>
#include <utility>

#include "ops/op_list.hpp"
#include "ops/rules.hpp"

namespace autopar::ops {

namespace {

/// Product of the dims from `from` on. Dims without elements are left out, since they do not show the layout of the
/// others.
std::int64_t fixed_product(const Sizes& sizes, std::size_t from) {
  std::int64_t product = 1;
  for (std::size_t i = from; i < sizes.size(); ++i) product *= sizes[i].fixed == 0 ? 1 : sizes[i].fixed;
  return product;
}

// Both shapes list the same elements in the same order. S is the number of elements between neighbouring samples.
// Position p in the new batch dim belongs to sample p / inner' % B exactly if inner' * (elements after that dim) = S.
BatchTyping reshape(const OpCall& op) {
  const auto self = op.first_tensor();
  const auto& type = op.type(self);
  const auto& from = op.sizes(self);
  const auto& to = op.result_sizes();
  const auto dims = batch_dims(to);
  if (!type.has_samples())
    return type_by_sizes(to).is(BatchKind::kReplicated)
               ? typed(op, type)
               : BatchTyping::mixes("it spreads a shared tensor over the batch");
  if (dims.size() != 1) return BatchTyping::mixes("the new shape has no single batch dim");
  const auto dim = static_cast<std::size_t>(dims.front());
  const auto stride = type.inner * fixed_product(from, static_cast<std::size_t>(type.dim) + 1);
  const auto after = fixed_product(to, dim + 1);
  const auto total = to[dim].per_sample;
  if (to[dim].fixed != 0 || stride % after != 0 || stride / after == 0 || total % (stride / after) != 0) {
    return BatchTyping::mixes("the new shape tears samples apart");
  }
  const auto inner = stride / after;
  return typed(op, {type.kind, static_cast<std::int32_t>(dim), total / inner, inner});
}

BatchTyping permute(const OpCall& op) {
  const auto self = op.first_tensor();
  const auto& type = op.type(self);
  const auto rank = op.rank(self);
  std::vector<std::int64_t> order;  // result dim i is dim order[i] of self
  for (std::int64_t i = 0; i < rank; ++i) order.push_back(i);
  const auto exchange = [&](std::int64_t a, std::int64_t b) {
    std::swap(order[static_cast<std::size_t>(wrap_dim(a, rank))], order[static_cast<std::size_t>(wrap_dim(b, rank))]);
  };
  const auto name = op.base_name();
  if (name == "permute") {
    const auto dims = op.integers("dims");
    if (!dims) return BatchTyping::mixes("its dims are not plain integers");
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = wrap_dim(dims->at(i), rank);
  } else if (name == "transpose" || name == "swapdims" || name == "swapaxes") {
    const auto first = op.integers(name == "swapaxes" ? "axis0" : "dim0");
    const auto second = op.integers(name == "swapaxes" ? "axis1" : "dim1");
    if (!first || !second) return BatchTyping::mixes("its dims are not plain integers");
    if (rank > 0) exchange(first->at(0), second->at(0));
  } else if (name == "movedim" || name == "moveaxis") {
    const auto source = op.integers("source");
    const auto destination = op.integers("destination");
    if (!source || !destination) return BatchTyping::mixes("its dims are not plain integers");
    std::vector<std::int64_t> moved(order.size(), -1);
    std::vector<bool> taken(order.size(), false);
    for (std::size_t i = 0; i < source->size(); ++i) {
      const auto from = wrap_dim(source->at(i), rank);
      moved[static_cast<std::size_t>(wrap_dim(destination->at(i), rank))] = from;
      taken[static_cast<std::size_t>(from)] = true;
    }
    std::size_t next = 0;
    for (auto& slot : moved) {
      if (slot >= 0) continue;
      while (taken[next]) ++next;
      slot = static_cast<std::int64_t>(next++);
    }
    order = moved;
  } else if (name == "t" || name == "mT") {
    if (rank >= 2) exchange(-2, -1);
  } else if (name == "numpy_T") {
    for (std::int64_t i = 0; i < rank; ++i) order[static_cast<std::size_t>(i)] = rank - 1 - i;
  } else {
    return BatchTyping::mixes("its order of dims is not known");
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (order[i] == type.dim) return typed(op, type.at_dim(static_cast<std::int64_t>(i)));
  }
  return BatchTyping::mixes("its order of dims is not known");
}

// A slice may hold one sample. A plain squeeze would then drop the batch dim, which the whole batch keeps.
BatchTyping squeeze(const OpCall& op) {
  const auto self = op.first_tensor();
  const auto& type = op.type(self);
  const auto& sizes = op.sizes(self);
  std::vector<std::int64_t> candidates;
  if (const auto dims = op.integers("dim")) {
    for (const auto dim : *dims) candidates.push_back(wrap_dim(dim, op.rank(self)));
  } else {
    for (std::int64_t i = 0; i < op.rank(self); ++i) candidates.push_back(i);
  }
  BatchTyping result = typed(op, type);
  result.handling.replace_squeeze = true;
  std::int64_t before = 0;
  for (const auto dim : candidates) {
    if (sizes[static_cast<std::size_t>(dim)] != SizeExpr{0, 1}) continue;
    result.handling.squeeze_dims.push_back(dim);
    if (dim < type.dim) ++before;
  }
  result.outputs.front() = type.at_dim(type.dim - before);
  return result;
}

// The two matrix dims become one dim behind all others, or are made from it.
BatchTyping diagonal(const OpCall& op) {
  const auto self = op.first_tensor();
  const auto& type = op.type(self);
  const bool embeds = op.base_name() == "diag_embed";
  const auto rank = embeds ? op.rank(self) + 1 : op.rank(self);  // rank of the tensor with matrices
  const auto first = wrap_dim(op.integer("dim1", embeds ? -2 : 0), rank);
  const auto second = wrap_dim(op.integer("dim2", embeds ? -1 : 1), rank);
  std::int64_t without = 0;  // number of a dim without counting the matrix dims
  for (std::int64_t dim = 0; dim < rank; ++dim) {
    if (dim == first || dim == second) continue;
    if ((embeds ? without : dim) == type.dim) return typed(op, type.at_dim(embeds ? dim : without));
    ++without;
  }
  return BatchTyping::mixes("it takes a diagonal over the batch");
}

BatchTyping unsqueeze(const OpCall& op) {
  const auto self = op.first_tensor();
  const auto& type = op.type(self);
  const auto at = wrap_dim(op.integer("dim", 0), op.rank(self) + 1);
  return typed(op, type.at_dim(type.dim + (at <= type.dim ? 1 : 0)));
}

BatchTyping expand(const OpCall& op) {
  const auto self = op.first_tensor();
  const auto& type = op.type(self);
  const auto& to = op.result_sizes();
  if (!type.has_samples()) return typed(op, type_by_sizes(to));
  return typed(op, type.at_dim(type.dim + static_cast<std::int64_t>(to.size()) - op.rank(self)));
}

BatchTyping broadcast_tensors(const OpCall& op) {
  const auto operands = op.tensors();
  const auto rank = static_cast<std::int64_t>(op.result_sizes().size());
  const auto shared = broadcast(op, operands, rank);
  if (!shared || !shared->is_batched()) return BatchTyping::mixes("its operands have samples in different dims");
  return typed(op, *shared);
}

BatchTyping select(const OpCall& op) {
  const auto self = op.first_tensor();
  const auto& type = op.type(self);
  const auto dim = wrap_dim(op.integer("dim", 0), op.rank(self));
  if (dim == type.dim) return BatchTyping::mixes("it picks one sample of the batch");
  return typed(op, type.at_dim(type.dim - (dim < type.dim ? 1 : 0)));
}

/// select_scatter, slice_scatter, diagonal_scatter: the part has the form of the result of select, slice or diagonal.
BatchTyping replace_part(const OpCall& op) {
  const auto self = op.first_tensor();
  const auto part = op.tensor("src");
  const auto& type = op.type(self);
  const auto name = op.base_name();
  if (!type.is_batched()) return BatchTyping::mixes("it writes samples into a shared tensor");
  auto place = type.dim;  // dim of the samples in the part
  if (name == "diagonal_scatter") {
    const auto first = wrap_dim(op.integer("dim1", 0), op.rank(self)),
               second = wrap_dim(op.integer("dim2", 1), op.rank(self));
    if (place == first || place == second) return BatchTyping::mixes("it writes a diagonal over the batch");
    place -= (first < type.dim ? 1 : 0) + (second < type.dim ? 1 : 0);
  } else {
    const auto dim = wrap_dim(op.integer("dim", 0), op.rank(self));
    if (dim == place) return BatchTyping::mixes("it writes samples by number");
    if (name == "select_scatter" && dim < type.dim) --place;
  }
  if (op.type(part) != type.at_dim(place)) return BatchTyping::mixes("samples of the part go to other samples");
  return typed(op, type);
}

// Pieces along the batch dim hold all samples exactly if their sizes and offsets are multiples of B * inner.
std::optional<BatchType> piece(const BatchType& type, SizeExpr offset, SizeExpr size) {
  if (offset.fixed != 0 || size.fixed != 0 || size.per_sample == 0) return std::nullopt;
  if (offset.per_sample % type.inner != 0 || size.per_sample % type.inner != 0) return std::nullopt;
  return BatchType{type.kind, type.dim, size.per_sample / type.inner, type.inner};
}

BatchTyping slice(const OpCall& op) {
  const auto self = op.first_tensor();
  const auto& type = op.type(self);
  const auto dim = wrap_dim(op.integer("dim", 0), op.rank(self));
  if (dim != type.dim) {
    // Bounds are clamped to the size of the dim, so even a result of fixed size may depend on the batch.
    return op.has_batch_sizes() ? BatchTyping::mixes("its bounds follow the batch, its dim does not") : typed(op, type);
  }
  if (!op.tensors(op.position("start")).empty()) return BatchTyping::mixes("its start is a tensor");
  const auto end = op.is_none("end") ? std::nullopt : op.expression("end");
  if (end && !end->depends_on_batch() && end->fixed != std::numeric_limits<std::int64_t>::max()) {
    return BatchTyping::mixes("it takes a fixed number of samples");
  }
  const auto at = static_cast<std::size_t>(dim);
  const auto start = op.is_none("start") ? SizeExpr{} : op.expression("start").value_or(SizeExpr{0, -1});
  const auto step = op.integer("step", 1);
  const bool all = start == SizeExpr{} && op.result_sizes()[at] == op.sizes(self)[at];
  if (all && step == 1) return typed(op, type);
  const auto part = step == 1 ? piece(type, start, op.result_sizes()[at]) : std::nullopt;
  if (!part) return BatchTyping::mixes("it takes some samples of the batch");
  return typed(op, *part);
}

BatchTyping split(const OpCall& op) {
  const auto self = op.first_tensor();
  const auto& type = op.type(self);
  const auto dim = wrap_dim(op.integer("dim", 0), op.rank(self));
  const bool drops_dim = op.base_name() == "unbind";
  if (dim != type.dim) {
    if (op.has_batch_sizes()) return BatchTyping::mixes("its pieces follow the batch, its dim does not");
    return typed(op, type.at_dim(type.dim - (drops_dim && dim < type.dim ? 1 : 0)));
  }
  if (drops_dim) return BatchTyping::mixes("it takes the batch apart");
  BatchTyping result = typed(op, type);
  SizeExpr offset;
  for (std::size_t k = 0; k < op.results().size(); ++k) {
    const auto size = op.result_sizes(k)[static_cast<std::size_t>(dim)];
    const auto part = piece(type, offset, size);
    if (!part) return BatchTyping::mixes("it cuts the batch into pieces");
    result.outputs[k] = *part;
    offset = {offset.per_sample + size.per_sample, offset.fixed + size.fixed};
  }
  return result;
}

BatchTyping repeat(const OpCall& op) {
  const auto self = op.first_tensor();
  const auto& type = op.type(self);
  const auto& to = op.result_sizes();
  const auto shift = static_cast<std::int64_t>(to.size()) - op.rank(self);
  if (type.has_samples()) {
    const auto dim = type.dim + shift;
    const auto repeats = to[static_cast<std::size_t>(dim)].per_sample / (type.outer * type.inner);
    return typed(op, {type.kind, static_cast<std::int32_t>(dim), type.outer * repeats, type.inner});
  }
  // A shared block of s rows, repeated k*B times, is k*s rows for each sample.
  return typed(op, type_by_sizes(to));
}

BatchTyping repeat_interleave(const OpCall& op) {
  const auto self = op.tensor("self");
  if (!self.valid() || op.is_none("dim") || !op.tensors(op.position("repeats")).empty()) {
    return BatchTyping::mixes("its repeats are not one number along a dim");
  }
  const auto& type = op.type(self);
  if (op.has_batch_sizes() || !type.has_samples())
    return BatchTyping::mixes("it repeats as often as there are samples");
  const auto dim = wrap_dim(op.integer("dim", 0), op.rank(self));
  if (dim != type.dim) return typed(op, type);
  return typed(op, {type.kind, type.dim, type.outer, type.inner * op.integer("repeats", 1)});
}

// one_hot, complex numbers from pairs and back.
BatchTyping append_dim(const OpCall& op) {
  const auto& type = op.type(op.first_tensor());
  return type.is_batched() ? typed(op, type) : BatchTyping::mixes("it numbers samples");
}

/// one_hot: the result's last dim runs over classes.
std::vector<PickedDim> picks_classes(const OpCall& op) {
  const auto self = op.first_tensor();
  if (!self.valid() || op.results().empty() || op.result_sizes().empty()) return {};
  return {{self, op.result_sizes().back()}};
}

ShardedOp shard_reshape(ShardCall& call) {
  const auto& op = call.op();
  const auto self = op.first_tensor();
  if (!call.is_sharded(self) || op.base_name() == "_reshape_alias") return ShardedOp::whole();
  const auto result = reshaped(call.slices(self), op.sizes(self), op.result_sizes());
  return result ? call.of_one(*result) : ShardedOp::whole();
}

ShardedOp shard_expand(ShardCall& call) {
  const auto& op = call.op();
  const auto self = op.first_tensor();
  if (!call.is_sharded(self)) return ShardedOp::whole();
  const auto& own = call.slices(self);
  const auto& to = op.result_sizes();
  const auto dim = own.dim + static_cast<std::int64_t>(to.size()) - op.rank(self);
  const bool keeps = to[static_cast<std::size_t>(dim)] == own.size_of(own.units);
  return keeps ? call.of_one(own.at_dim(dim)) : ShardedOp::whole();
}

/// Complex numbers from pairs, and back.
ShardedOp shard_with_other_last_dim(ShardCall& call) {
  const auto& op = call.op();
  const auto first = call.sharded().front();
  const auto& own = call.slices(first);
  const bool is_kept = own.dim + 1 < op.rank(first) || op.result_sizes().size() > op.sizes(first).size();
  return is_kept ? call.of_one(own) : ShardedOp::whole();
}

/// Repeats every element several times in a row: key heads for the queries of their group.
ShardedOp shard_repeat_each(ShardCall& call) {
  const auto& op = call.op();
  const auto self = op.tensor("self");
  const bool is_plain = self.valid() && !op.is_none("dim") && op.is_none("output_size") && op.tensors().size() == 1 &&
                        !op.has_batch_sizes();
  if (!is_plain || !call.is_sharded(self)) return ShardedOp::whole();
  const auto& own = call.slices(self);
  return call.of_one(call.along_own_dim() ? own.times(op.integer("repeats", 1)) : own);
}

/// Pieces along the sharded dim, each of whole parts: queries, keys and values of fused projections.
ShardedOp shard_pieces(ShardCall& call) {
  const auto& op = call.op();
  if (!call.along_own_dim()) return call.by_dims();
  const auto& whole = call.slices(op.first_tensor());
  if (op.base_name() == "unbind" || op.integer("step", 1) != 1 || op.tensors().size() != 1 ||
      whole.outer.depends_on_batch()) {
    return ShardedOp::whole();
  }
  auto begin = std::optional(SizeExpr{});
  if (op.def().kind == OpKind::kSlice && !op.is_none("start")) begin = op.expression("start");
  if (!begin || begin->depends_on_batch() || begin->fixed < 0) return ShardedOp::whole();
  std::vector<TensorLayout> results;
  for (std::size_t k = 0; k < op.results().size(); ++k) {
    const auto size = op.result_sizes(k)[static_cast<std::size_t>(whole.dim)];
    const auto piece = size.depends_on_batch() ? std::nullopt : whole.piece(begin->fixed, size.fixed);
    if (!piece) return ShardedOp::whole();
    results.push_back(TensorLayout::sharded(*piece));
    begin->fixed += size.fixed;
  }
  return call.with(std::move(results));
}

}  // namespace

// NOLINTNEXTLINE(readability-function-size): a table.
void add_views(OpList& list) {
  OpDef def;
  def.op_class = OpClass::kView;
  def.traits = OpTrait::kKeepsIntegers;
  def.saved = SavedTensors::kNothing;
  def.over_sums = linear_in_first;
  def.treatment = kPerSample;
  def.summary = "other dims; the dim of samples is followed";
  const auto add = [&](OpKind kind, OpTrait traits, auto rule, auto sharding,
                       std::initializer_list<std::string_view> names) {
    auto own = def;
    own.kind = kind;
    own.traits = own.traits | traits;
    own.over_samples = rule;
    own.sharding = sharding;
    list.add(own, names);
  };
  constexpr auto kFollowed = OpTrait::kKeepsSampleNumbers;

  auto shape = def;
  shape.kind = OpKind::kReshape;
  shape.traits = def.traits | kFollowed | OpTrait::kTakesBatchSizes;
  shape.over_samples = reshape;
  shape.sharding = shard_reshape;
  shape.autocast = AutocastRule::kNone;  // whether these copy depends on their operand's memory layout
  shape.summary = "the new shape has one dim of samples; mixes if it tears samples apart";
  list.add(shape, {"view", "reshape", "_unsafe_view", "flatten", "unflatten", "view_as", "reshape_as", "ravel",
                   "_reshape_alias"});
  shape.op_class = OpClass::kMemory;
  list.add(shape, {"_reshape_copy"});

  add(OpKind::kPermute, kFollowed | OpTrait::kTakesApart, permute, shard_by_dims,
      {"transpose", "permute", "t", "numpy_T", "mT", "movedim", "moveaxis", "swapaxes", "swapdims"});
  add(OpKind::kOther, kFollowed, squeeze, shard_by_dims, {"squeeze"});
  add(OpKind::kOther, kFollowed, unsqueeze, shard_by_dims, {"unsqueeze"});
  add(OpKind::kExpand, kFollowed | OpTrait::kTakesBatchSizes | OpTrait::kMakesBatchDim | OpTrait::kCopiesGradient,
      expand, shard_expand, {"expand", "expand_as", "broadcast_to"});
  def.over_sums = nullptr;
  add(OpKind::kOther, OpTrait::kCopiesGradient, broadcast_tensors, nullptr, {"broadcast_tensors"});
  def.over_sums = linear_in_first;

  def.summary = "along other dims than that of samples, or whole batches that were joined; mixes else";
  constexpr auto kPieces = OpTrait::kTakesApart | OpTrait::kCopiesGradient;
  add(OpKind::kSelect, kPieces, select, shard_by_dims, {"select"});
  add(OpKind::kSlice, kPieces | OpTrait::kTakesBatchSizes, slice, shard_pieces, {"slice", "narrow"});
  add(OpKind::kSplit, kPieces | OpTrait::kTakesBatchSizes, split, shard_pieces,
      {"chunk", "split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "tensor_split", "unbind"});

  def.op_class = OpClass::kMemory;
  def.summary = "other dims; the dim of samples is followed";
  add(OpKind::kOther, OpTrait::kTakesBatchSizes | OpTrait::kMakesBatchDim, repeat, shard_expand, {"repeat", "tile"});
  def.over_sums = nullptr;
  add(OpKind::kOther, OpTrait::kNone, repeat_interleave, shard_repeat_each, {"repeat_interleave"});

  def.traits = OpTrait::kNone;
  auto classes = def;
  classes.over_samples = append_dim;
  classes.sharding = shard_with_other_last_dim;
  classes.picks = picks_classes;
  classes.autocast = AutocastRule::kNone;  // it checks its operand's values
  list.add(classes, {"one_hot"});
  auto pairs = def;
  pairs.op_class = OpClass::kView;
  pairs.over_samples = append_dim;
  pairs.over_sums = linear_in_all;
  pairs.sharding = shard_with_other_last_dim;
  list.add(pairs, {"view_as_real", "view_as_complex"});

  auto over_two = def;
  over_two.over_samples = diagonal;
  over_two.summary = "over two dims; mixes if one of them is that of samples";
  list.add(over_two, {"diag_embed"});
  over_two.op_class = OpClass::kView;
  list.add(over_two, {"diagonal"});

  auto part = def;
  part.over_samples = replace_part;
  part.summary = "along other dims than that of samples; mixes else";
  list.add(part, {"select_scatter", "slice_scatter", "diagonal_scatter"});
}

}  // namespace autopar::ops
