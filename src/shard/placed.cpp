#include <autopar/shard/placed.hpp>

#include <string>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <autopar/core/error.hpp>

#include "shard/group_state.hpp"

namespace autopar {

namespace {

int counted_from_front(int dim, int dims) {
  const int front = dim < 0 ? dim + dims : dim;
  if (front >= 0 && front < dims) return front;
  throw InvalidArgument("there is no dim " + std::to_string(dim) + " in a tensor of " + std::to_string(dims) + " dims");
}

std::string text_of(const std::vector<std::int64_t>& sizes) {
  std::string text = "[";
  for (std::size_t i = 0; i < sizes.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(sizes[i]);
  return text + "]";
}

std::string way_out(const Placed& value) {
  return value.placement().is_partial() ? "reduce(x) adds them up" : "gather(x) brings them together";
}

void require_alike(const Placed& a, const Placed& b, const char* operation) {
  const bool alike = a.placement() == b.placement() && (a.placement().is_replicate() || a.group() == b.group()) &&
                     (!a.placement().is_shard() || a.split() == b.split());
  if (alike) return;
  throw InvalidArgument(std::string("cannot ") + operation + " " + to_string(a) + " and " + to_string(b) +
                        ", which lie differently on the ranks; scatter, gather or reduce one to where the other is");
}

}  // namespace

Placed::Placed(at::Tensor everywhere) : Placed(std::move(everywhere), Placement::replicate(), {}, {}) {}

Placed Placed::replicate(at::Tensor everywhere, Group group) {
  return Placed(std::move(everywhere), Placement::replicate(), std::move(group), {});
}

Placed Placed::shard(at::Tensor local, Group group, int dim, Split split) {
  dim = counted_from_front(dim, static_cast<int>(local.dim()));
  if (split.parts() != group.size() || split.length(group.place()) != local.size(dim)) {
    throw InvalidArgument("a slice of " + std::to_string(local.size(dim)) + " along dim " + std::to_string(dim) +
                          " is not that of place " + std::to_string(group.place()) + " of " +
                          std::to_string(group.size()) + " in a split into " + to_string(split));
  }
  if (group.is_alone()) return replicate(std::move(local), std::move(group));
  return Placed(std::move(local), Placement::shard(dim), std::move(group), std::move(split));
}

Placed Placed::shard(at::Tensor local, Group group, int dim) {
  dim = counted_from_front(dim, static_cast<int>(local.dim()));
  if (group.is_alone()) return replicate(std::move(local), std::move(group));
  auto lengths = at::empty({group.size()}, at::kLong);
  lengths[group.place()] = local.size(dim);
  group.state()->all_gather(lengths);
  const auto* begin = lengths.const_data_ptr<std::int64_t>();
  Split split(std::vector<std::int64_t>(begin, begin + group.size()));
  return Placed(std::move(local), Placement::shard(dim), std::move(group), std::move(split));
}

Placed Placed::partial(at::Tensor local, Group group) {
  if (group.is_alone()) return replicate(std::move(local), std::move(group));
  return Placed(std::move(local), Placement::partial(), std::move(group), {});
}

const Split& Placed::split() const {
  AUTOPAR_ASSERT(split_.has_value(), "only a sharded value has a split");
  return *split_;
}

int Placed::from_front(int dim) const { return counted_from_front(dim, this->dim()); }

std::int64_t Placed::size(int dim) const {
  dim = from_front(dim);
  return placement_.is_shard(dim) ? split_->total() : local_.size(dim);
}

std::vector<std::int64_t> Placed::sizes() const {
  std::vector<std::int64_t> sizes;
  for (int d = 0; d < dim(); ++d) sizes.push_back(size(d));
  return sizes;
}

Placed::operator at::Tensor() const {
  if (placement_.is_replicate()) return local_;
  throw InvalidArgument("a tensor is needed that all ranks have, not " + to_string(*this) + "; " + way_out(*this) +
                        (placement_.is_shard() ? ", x.map(f) does element-wise work on them" : ""));
}

void Placed::require_whole_elements() const {
  if (!placement_.is_partial()) return;
  throw InvalidArgument("a function of " + to_string(*this) +
                        " is not the sum of its functions; reduce(x) adds the terms up first");
}

Placed Placed::with_same_sizes(at::Tensor local) const {
  if (local.sizes() != local_.sizes()) {
    throw InvalidArgument("map takes element-wise functions; this one made " + text_of(local.sizes().vec()) + " of " +
                          text_of(local_.sizes().vec()) +
                          "; flatten, unflatten and transpose change sizes, gather(x) brings slices together");
  }
  return Placed(std::move(local), placement_, group_, split_);
}

Placed Placed::flatten(int start, int end) const {
  start = from_front(start);
  end = from_front(end);
  auto local = local_.flatten(start, end);
  if (!placement_.is_shard() || start >= end) return Placed(std::move(local), placement_, group_, split_);
  const int sharded = placement_.dim();
  if (sharded < start) return Placed(std::move(local), placement_, group_, split_);
  if (sharded > end) return Placed(std::move(local), Placement::shard(sharded - (end - start)), group_, split_);
  if (sharded > start) {
    throw InvalidArgument("flatten(" + std::to_string(start) + ", " + std::to_string(end) + ") of " + to_string(*this) +
                          " would join slices to a dim before them, which are then no slices; gather(x) first");
  }
  std::int64_t inner = 1;
  for (int d = start + 1; d <= end; ++d) inner *= local_.size(d);
  auto lengths = split_->lengths();
  for (auto& length : lengths) length *= inner;
  return Placed(std::move(local), Placement::shard(start), group_, Split(std::move(lengths)));
}

Placed Placed::unflatten(int dim, const std::vector<std::int64_t>& sizes) const {
  dim = from_front(dim);
  const auto more = static_cast<int>(sizes.size()) - 1;
  if (!placement_.is_shard(dim)) {
    const bool moves = placement_.is_shard() && placement_.dim() > dim;
    return Placed(local_.unflatten(dim, sizes), moves ? Placement::shard(placement_.dim() + more) : placement_, group_,
                  split_);
  }
  std::int64_t inner = 1;
  for (std::size_t i = 1; i < sizes.size(); ++i) inner *= sizes[i];
  auto lengths = split_->lengths();
  bool whole = !sizes.empty() && inner > 0 && sizes.front() * inner == split_->total();
  for (auto& length : lengths) {
    whole = whole && length % inner == 0;
    if (whole) length /= inner;
  }
  if (!whole) {
    throw InvalidArgument("unflatten of " + to_string(*this) + " into " + text_of(sizes) +
                          " would cut through units of " + std::to_string(inner) +
                          "; give the layer that makes it .unit(" + std::to_string(inner) + ")");
  }
  auto local_sizes = sizes;
  local_sizes.front() = lengths[static_cast<std::size_t>(group_.place())];
  return Placed(local_.unflatten(dim, local_sizes), placement_, group_, Split(std::move(lengths)));
}

Placed Placed::transpose(int a, int b) const {
  a = from_front(a);
  b = from_front(b);
  auto placement = placement_;
  if (placement.is_shard(a)) {
    placement = Placement::shard(b);
  } else if (placement.is_shard(b)) {
    placement = Placement::shard(a);
  }
  return Placed(local_.transpose(a, b), placement, group_, split_);
}

Placed Placed::plus(const Placed& other) const {
  require_alike(*this, other, "add");
  return Placed(local_ + other.local_, placement_, group_.is_alone() ? other.group_ : group_, split_);
}

Placed Placed::times(const Placed& other) const {
  require_alike(*this, other, "multiply");
  require_whole_elements();
  return Placed(local_ * other.local_, placement_, group_.is_alone() ? other.group_ : group_, split_);
}

Placed Placed::times(double factor) const { return Placed(local_ * factor, placement_, group_, split_); }

std::string to_string(const Placed& value) {
  const auto split = value.placement().is_shard() ? " " + to_string(value.split()) : "";
  return to_string(value.placement()) + split + " of " + text_of(value.sizes());
}

}  // namespace autopar
