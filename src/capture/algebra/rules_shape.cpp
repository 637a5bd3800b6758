#include <limits>

#include "capture/algebra/op_context.hpp"

namespace autopar::algebra {
namespace {

/// Of the dims from there on. Those without elements, which say nothing of how others lie, are left out.
std::int64_t fixed_product(const Sizes& sizes, std::size_t from) {
  std::int64_t product = 1;
  for (std::size_t i = from; i < sizes.size(); ++i) product *= sizes[i].fixed == 0 ? 1 : sizes[i].fixed;
  return product;
}

// Both shapes list the same elements in the same order. With S = elements between neighbouring samples, position p in
// the new batch dim belongs to sample p / inner' % B exactly if inner' * (elements after that dim) = S.
RuleResult type_reshape(const OpContext& op) {
  const auto self = op.first_tensor();
  const auto& type = op.type(self);
  const auto& from = op.sizes(self);
  const auto& to = op.result_sizes();
  const auto dims = batch_dims(to);
  if (!type.has_samples())
    return type_by_sizes(to).is(BatchKind::kReplicated)
               ? typed(op, type)
               : RuleResult::mixes("it spreads a shared tensor over the batch");
  if (dims.size() != 1) return RuleResult::mixes("the new shape has no single batch dim");
  const auto dim = static_cast<std::size_t>(dims.front());
  const auto stride = type.inner * fixed_product(from, static_cast<std::size_t>(type.dim) + 1);
  const auto after = fixed_product(to, dim + 1);
  const auto total = to[dim].per_sample;
  if (to[dim].fixed != 0 || stride % after != 0 || stride / after == 0 || total % (stride / after) != 0) {
    return RuleResult::mixes("the new shape tears samples apart");
  }
  const auto inner = stride / after;
  return typed(op, {type.kind, static_cast<std::int32_t>(dim), total / inner, inner});
}

RuleResult type_permute(const OpContext& op) {
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
    if (!dims) return RuleResult::mixes("its dims are not plain integers");
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = wrap_dim(dims->at(i), rank);
  } else if (name == "transpose" || name == "swapdims" || name == "swapaxes") {
    const auto first = op.integers(name == "swapaxes" ? "axis0" : "dim0");
    const auto second = op.integers(name == "swapaxes" ? "axis1" : "dim1");
    if (!first || !second) return RuleResult::mixes("its dims are not plain integers");
    if (rank > 0) exchange(first->at(0), second->at(0));
  } else if (name == "movedim" || name == "moveaxis") {
    const auto source = op.integers("source");
    const auto destination = op.integers("destination");
    if (!source || !destination) return RuleResult::mixes("its dims are not plain integers");
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
    return RuleResult::mixes("its order of dims is not known");
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (order[i] == type.dim) return typed(op, type.at_dim(static_cast<std::int64_t>(i)));
  }
  return RuleResult::mixes("its order of dims is not known");
}

// A slice may hold one sample; then a plain squeeze would drop the batch dim, which the whole batch keeps.
RuleResult type_squeeze(const OpContext& op) {
  const auto self = op.first_tensor();
  const auto& type = op.type(self);
  const auto& sizes = op.sizes(self);
  std::vector<std::int64_t> candidates;
  if (const auto dims = op.integers("dim")) {
    for (const auto dim : *dims) candidates.push_back(wrap_dim(dim, op.rank(self)));
  } else {
    for (std::int64_t i = 0; i < op.rank(self); ++i) candidates.push_back(i);
  }
  RuleResult result = typed(op, type);
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

// The two dims of the matrices become one behind all others, or come from it.
RuleResult type_diagonal(const OpContext& op) {
  const auto self = op.first_tensor();
  const auto& type = op.type(self);
  const bool embeds = op.base_name() == "diag_embed";
  const auto rank = embeds ? op.rank(self) + 1 : op.rank(self);  // of the side with matrices
  const auto first = wrap_dim(op.integer("dim1", embeds ? -2 : 0), rank);
  const auto second = wrap_dim(op.integer("dim2", embeds ? -1 : 1), rank);
  std::int64_t without = 0;  // number of a dim when those of the matrices are left out
  for (std::int64_t dim = 0; dim < rank; ++dim) {
    if (dim == first || dim == second) continue;
    if ((embeds ? without : dim) == type.dim) return typed(op, type.at_dim(embeds ? dim : without));
    ++without;
  }
  return RuleResult::mixes("it takes a diagonal over the batch");
}

RuleResult type_unsqueeze(const OpContext& op) {
  const auto self = op.first_tensor();
  const auto& type = op.type(self);
  const auto at = wrap_dim(op.integer("dim", 0), op.rank(self) + 1);
  return typed(op, type.at_dim(type.dim + (at <= type.dim ? 1 : 0)));
}

RuleResult type_expand(const OpContext& op) {
  const auto self = op.first_tensor();
  const auto& type = op.type(self);
  const auto& to = op.result_sizes();
  if (!type.has_samples()) return typed(op, type_by_sizes(to));
  return typed(op, type.at_dim(type.dim + static_cast<std::int64_t>(to.size()) - op.rank(self)));
}

RuleResult type_broadcast_tensors(const OpContext& op) {
  const auto operands = op.tensors();
  const auto rank = static_cast<std::int64_t>(op.result_sizes().size());
  const auto shared = broadcast(op, operands, rank);
  if (!shared || !shared->is_batched()) return RuleResult::mixes("its operands have samples in different dims");
  return typed(op, *shared);
}

RuleResult type_select(const OpContext& op) {
  const auto self = op.first_tensor();
  const auto& type = op.type(self);
  const auto dim = wrap_dim(op.integer("dim", 0), op.rank(self));
  if (dim == type.dim) return RuleResult::mixes("it picks one sample of the batch");
  return typed(op, type.at_dim(type.dim - (dim < type.dim ? 1 : 0)));
}

/// select_scatter, slice_scatter, diagonal_scatter: the part is what select, slice or diagonal would give.
RuleResult type_replace_part(const OpContext& op) {
  const auto self = op.first_tensor();
  const auto part = op.tensor("src");
  const auto& type = op.type(self);
  const auto name = op.base_name();
  if (!type.is_batched()) return RuleResult::mixes("it writes samples into a shared tensor");
  auto place = type.dim;  // of the samples in the part
  if (name == "diagonal_scatter") {
    const auto first = wrap_dim(op.integer("dim1", 0), op.rank(self)),
               second = wrap_dim(op.integer("dim2", 1), op.rank(self));
    if (place == first || place == second) return RuleResult::mixes("it writes a diagonal over the batch");
    place -= (first < type.dim ? 1 : 0) + (second < type.dim ? 1 : 0);
  } else {
    const auto dim = wrap_dim(op.integer("dim", 0), op.rank(self));
    if (dim == place) return RuleResult::mixes("it writes samples by number");
    if (name == "select_scatter" && dim < type.dim) --place;
  }
  if (op.type(part) != type.at_dim(place)) return RuleResult::mixes("samples of the part go to other samples");
  return typed(op, type);
}

// Pieces along the batch dim hold all samples exactly if they are whole multiples of B * inner, at such offsets.
std::optional<BatchType> piece(const BatchType& type, SizeExpr offset, SizeExpr size) {
  if (offset.fixed != 0 || size.fixed != 0 || size.per_sample == 0) return std::nullopt;
  if (offset.per_sample % type.inner != 0 || size.per_sample % type.inner != 0) return std::nullopt;
  return BatchType{type.kind, type.dim, size.per_sample / type.inner, type.inner};
}

RuleResult type_slice(const OpContext& op) {
  const auto self = op.first_tensor();
  const auto& type = op.type(self);
  const auto dim = wrap_dim(op.integer("dim", 0), op.rank(self));
  if (dim != type.dim) {
    // Bounds are cut off at the size of the dim, so even a result of fixed size may depend on the batch.
    return op.has_batch_sizes() ? RuleResult::mixes("its bounds follow the batch, its dim does not") : typed(op, type);
  }
  if (!op.tensors(op.position("start")).empty()) return RuleResult::mixes("its start is a tensor");
  const auto end = op.is_none("end") ? std::nullopt : op.expression("end");
  if (end && !end->depends_on_batch() && end->fixed != std::numeric_limits<std::int64_t>::max()) {
    return RuleResult::mixes("it takes a fixed number of samples");
  }
  const auto at = static_cast<std::size_t>(dim);
  const auto start = op.is_none("start") ? SizeExpr{} : op.expression("start").value_or(SizeExpr{0, -1});
  const auto step = op.integer("step", 1);
  const bool all = start == SizeExpr{} && op.result_sizes()[at] == op.sizes(self)[at];
  if (all && step == 1) return typed(op, type);
  const auto part = step == 1 ? piece(type, start, op.result_sizes()[at]) : std::nullopt;
  if (!part) return RuleResult::mixes("it takes some samples of the batch");
  return typed(op, *part);
}

RuleResult type_split(const OpContext& op) {
  const auto self = op.first_tensor();
  const auto& type = op.type(self);
  const auto dim = wrap_dim(op.integer("dim", 0), op.rank(self));
  const bool drops_dim = op.base_name() == "unbind";
  if (dim != type.dim) {
    if (op.has_batch_sizes()) return RuleResult::mixes("its pieces follow the batch, its dim does not");
    return typed(op, type.at_dim(type.dim - (drops_dim && dim < type.dim ? 1 : 0)));
  }
  if (drops_dim) return RuleResult::mixes("it takes the batch apart");
  RuleResult result = typed(op, type);
  SizeExpr offset;
  for (std::size_t k = 0; k < op.results().size(); ++k) {
    const auto size = op.result_sizes(k)[static_cast<std::size_t>(dim)];
    const auto part = piece(type, offset, size);
    if (!part) return RuleResult::mixes("it cuts the batch into pieces");
    result.outputs[k] = *part;
    offset = {offset.per_sample + size.per_sample, offset.fixed + size.fixed};
  }
  return result;
}

RuleResult type_repeat(const OpContext& op) {
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

RuleResult type_repeat_interleave(const OpContext& op) {
  const auto self = op.tensor("self");
  if (!self.valid() || op.is_none("dim") || !op.tensors(op.position("repeats")).empty()) {
    return RuleResult::mixes("its repeats are not one number along a dim");
  }
  const auto& type = op.type(self);
  if (op.has_batch_sizes() || !type.has_samples()) return RuleResult::mixes("it repeats as often as there are samples");
  const auto dim = wrap_dim(op.integer("dim", 0), op.rank(self));
  if (dim != type.dim) return typed(op, type);
  return typed(op, {type.kind, type.dim, type.outer, type.inner * op.integer("repeats", 1)});
}

RuleResult type_cat(const OpContext& op) {
  const auto operands = op.tensors();
  const auto rank = static_cast<std::int64_t>(op.result_sizes().size());
  const auto dim = wrap_dim(op.integer("dim", 0), rank);
  const auto shared = broadcast(op, operands, rank);
  if (!shared || (shared->has_samples() && shared->dim != dim)) {
    // Along another dim every piece must have its samples in the same place.
    for (const auto operand : operands) {
      const bool empty = op.sizes(operand) == Sizes{SizeExpr{0, 0}};
      if (!shared || (!op.type(operand).has_samples() && !empty)) {
        return RuleResult::mixes("it joins tensors whose samples are in different places");
      }
    }
    return typed(op, *shared);
  }
  std::int64_t outer = 0;
  for (const auto operand : operands) {
    const auto& type = op.type(operand);
    if (!type.is_batched() || type.inner != shared->inner) {
      return RuleResult::mixes("it appends to the batch what is not one row for each sample");
    }
    outer += type.outer;
  }
  return typed(op, BatchType::batched(dim, outer, shared->inner));
}

// Layouts may differ in `outer` when batches are joined, which `broadcast` takes for a conflict.
RuleResult type_joined_batches(const OpContext& op) {
  const auto operands = op.tensors();
  const auto dim = wrap_dim(op.integer("dim", 0), static_cast<std::int64_t>(op.result_sizes().size()));
  std::int64_t outer = 0;
  const auto inner = op.type(operands.front()).inner;
  for (const auto operand : operands) {
    const auto& type = op.type(operand);
    if (!type.is_batched() || type.dim != dim || type.inner != inner) return type_cat(op);
    outer += type.outer;
  }
  return typed(op, BatchType::batched(dim, outer, inner));
}

RuleResult type_stack(const OpContext& op) {
  const auto operands = op.tensors();
  const auto rank = op.rank(operands.front());
  const auto at = wrap_dim(op.integer("dim", 0), rank + 1);
  const auto shared = broadcast(op, operands, rank);
  if (!shared || !shared->has_samples())
    return RuleResult::mixes("it joins tensors whose samples are in different places");
  for (const auto operand : operands) {
    if (!op.type(operand).has_samples()) {
      return RuleResult::mixes("it joins tensors whose samples are in different places");
    }
  }
  return typed(op, shared->at_dim(shared->dim + (at <= shared->dim ? 1 : 0)));
}

RuleResult type_arange(const OpContext& op) {
  const auto end = op.expression("end");
  const bool from_zero = !op.has("start") || (op.expression("start") == SizeExpr{});
  const bool by_one = !op.has("step") || op.expression("step") == SizeExpr{0, 1};
  if (end == SizeExpr{1, 0} && from_zero && by_one) return typed(op, {BatchKind::kSampleIndex, 0, 1, 1});
  const bool by_row = end && op.has("step") && end->fixed == 0 && op.expression("step") == SizeExpr{0, end->per_sample};
  if (by_row && from_zero) return typed(op, {BatchKind::kRowStart, 0, 1, 1});
  return RuleResult::mixes("it counts over the samples of the batch");
}

RuleResult type_copy_into(const OpContext& op) {
  const auto self = op.first_tensor();
  const auto operands = op.tensors();
  if (operands.size() < 2) return RuleResult::mixes("what it copies is not known");
  const auto source = operands[1];
  const auto from = op.type(source);
  const auto& self_type = op.type(self);
  if (!from.has_samples()) {
    return typed(op, self_type.has_samples() ? BatchType::batched(self_type.dim, self_type.outer, self_type.inner)
                                             : type_by_sizes(op.sizes(self)));
  }
  return typed(op, from.at_dim(from.dim + op.rank(self) - op.rank(source)));
}

RuleResult type_fill(const OpContext& op) {
  const auto operands = op.tensors();
  if (op.written_argument() < 0) {  // at::normal(mean, std) and its like
    const auto shared = broadcast(op, operands, static_cast<std::int64_t>(op.result_sizes().size()));
    if (operands.empty()) return typed(op, type_by_sizes(op.result_sizes()));
    return shared ? typed(op, *shared) : RuleResult::mixes("its operands have samples in different dims");
  }
  for (std::size_t i = 1; i < operands.size(); ++i) {
    if (op.type(operands[i]).has_samples()) return RuleResult::mixes("it fills with the value of one sample");
  }
  const auto& self = op.type(operands.front());
  return typed(
      op, self.has_samples() ? BatchType::batched(self.dim, self.outer, self.inner) : type_by_sizes(op.result_sizes()));
}

}  // namespace

RuleResult type_shape_op(const OpContext& op) {
  switch (op.traits().family) {
    case OpFamily::kCopyValue: {
      const auto& self = op.type(op.first_tensor());
      return self.has_samples() ? typed(op, self) : typed(op, type_by_sizes(op.result_sizes()));
    }
    case OpFamily::kFactory:
      return typed(op, type_by_sizes(op.result_sizes()));
    case OpFamily::kLikeFactory: {
      const auto& self = op.type(op.first_tensor());
      return typed(op, self.has_samples() ? BatchType::batched(self.dim, self.outer, self.inner)
                                          : type_by_sizes(op.result_sizes()));
    }
    case OpFamily::kFill:
      return type_fill(op);
    case OpFamily::kCopyInto:
      return type_copy_into(op);
    case OpFamily::kArange:
      return type_arange(op);
    case OpFamily::kReshape:
      return type_reshape(op);
    case OpFamily::kPermute:
      return type_permute(op);
    case OpFamily::kSqueeze:
      return type_squeeze(op);
    case OpFamily::kUnsqueeze:
      return type_unsqueeze(op);
    case OpFamily::kReplacePart:
      return type_replace_part(op);
    case OpFamily::kDiagonal:
      return type_diagonal(op);
    case OpFamily::kExpand:
      return type_expand(op);
    case OpFamily::kBroadcastTensors:
      return type_broadcast_tensors(op);
    case OpFamily::kSelect:
      return type_select(op);
    case OpFamily::kSlice:
      return type_slice(op);
    case OpFamily::kSplit:
      return type_split(op);
    case OpFamily::kRepeat:
      return type_repeat(op);
    case OpFamily::kRepeatInterleave:
      return type_repeat_interleave(op);
    case OpFamily::kCat:
      return type_joined_batches(op);
    case OpFamily::kStack:
      return type_stack(op);
    default:
      return RuleResult::mixes("it is not a shape operator");
  }
}

}  // namespace autopar::algebra
