#include "torch/gradients/gradient_store.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "shard/tensor_buffer.hpp"
#include "torch/engine/rounded_sums.hpp"
#include "torch/gradients/gradient_factor.hpp"

namespace autopar::gradients {

namespace {

/// Exchanges over one group that have ended when they return.
class GroupExchange final : public PartExchange {
 public:
  GroupExchange(AnyTransport& wire, GroupId group) : wire_(wire), group_(group) {}
  void all_to_all(const Buffer& buffer) override { wire_.wait(wire_.all_to_all(buffer, group_)); }
  void all_gather(const Buffer& buffer) override { wire_.wait(wire_.all_gather(buffer, group_)); }

 private:
  AnyTransport& wire_;
  GroupId group_;
};

/// This rank's shard of the sum.
at::Tensor shard_of_sum(GradientSums& sums, const parameters::ShardMemory& memory, const at::Tensor& flat) {
  const auto& ranks = memory.unit().ranks;
  const GroupId group = sums.groups.at(ranks);
  if (engine::are_rounded(flat.scalar_type(), sums.buckets)) {
    GroupExchange exchange(sums.wire, group);
    const auto shard = at::empty({memory.own().size()}, flat.options());
    engine::reduce_scatter(engine::RoundedBucket(flat, ranks, sums.wire.rank()), shard, fused::Destination::kIsWritten,
                           exchange);
    return shard;
  }
  const auto buffer = buffer_of(flat);
  sums.wire.wait(sums.wire.reduce_scatter(buffer, summed_dtype(flat.scalar_type()), group));
  return flat.narrow(0, memory.own().begin, memory.own().size()).clone();
}

/// Gradients of some parameters of a unit, each whole on every member: afterwards each member has its shards of the
/// sums.
void sum_into_shards(GradientSums& sums, const parameters::ShardMemory& memory,
                     const std::vector<std::pair<const parameters::ShardUnit::Place*, at::Tensor*>>& gradients) {
  const auto& whole = memory.whole();
  const auto flat = at::zeros({memory.unit().elements}, whole.options().dtype(memory.unit().dtype));
  for (const auto& [place, gradient] : gradients)
    parameters::part_of(flat, place->offset, place->sizes).copy_(*gradient);
  const auto share = shard_of_sum(sums, memory, flat);
  for (const auto& [place, gradient] : gradients) {
    const auto within = memory.within_part(*place);
    *gradient = parameters::part_of(share, within.begin, {within.size()});
  }
}

/// Gradients one after the other, padded to an equal part for each rank.
at::Tensor joined(const std::vector<HandleGradient*>& gradients, std::int64_t ranks) {
  std::vector<at::Tensor> parts;
  std::int64_t elements = 0;
  for (const auto* one : gradients) {
    parts.push_back(one->gradient.reshape({-1}));
    elements += parts.back().numel();
  }
  const std::int64_t padded = BucketCut::Bucket{elements}.elements_in_shards(ranks);
  parts.push_back(at::zeros({padded - elements}, parts.front().options()));
  return at::cat(parts);
}

/// Replaces flat gradients by their sum. Rounded ones are exchanged a bucket at a time, since their copies take memory.
void sum_whole(GradientSums& sums, const std::vector<Rank>& ranks, const at::Tensor& flat) {
  const GroupId group = sums.groups.at(ranks);
  if (!engine::are_rounded(flat.scalar_type(), sums.buckets)) {
    sums.wire.wait(sums.wire.all_reduce(buffer_of(flat), summed_dtype(flat.scalar_type()), group));
    return;
  }
  GroupExchange exchange(sums.wire, group);
  const std::int64_t most = sums.buckets.size.value() / static_cast<std::int64_t>(flat.element_size());
  const std::int64_t piece = BucketCut::Bucket{most}.elements_in_shards(std::ssize(ranks));
  for (std::int64_t begin = 0; begin < flat.numel(); begin += piece) {
    const auto part = flat.narrow(0, begin, std::min(piece, flat.numel() - begin));
    engine::all_reduce(engine::RoundedBucket(part, ranks, sums.wire.rank()), exchange);
  }
}

}  // namespace

void add_to(at::Tensor& sum, const at::Tensor& gradient, bool may_take) {
  if (sum.defined())
    sum.add_(gradient);
  else
    sum = may_take ? gradient : gradient.clone();
}

void GradientStore::accumulate(const parameters::ManagedTensor& tensor, const at::Tensor& gradient, bool may_take) {
  auto& sum = accumulated_[tensor.id];
  sum.handle = tensor.handle;
  add_to(sum.gradient, gradient, may_take);
}

Bytes GradientStore::accumulated() const {
  Bytes bytes;
  for (const auto& [id, sum] : accumulated_) bytes += Bytes(static_cast<std::int64_t>(sum.gradient.nbytes()));
  return bytes;
}

void GradientStore::reduce(GradientSums sums) {
  const at::NoGradGuard no_grad;
  reduce_whole(sums);
  reduce_into_shards(sums);
  for (auto& [id, sum] : std::exchange(accumulated_, {})) {
    auto& waiting = reduced_[id];
    waiting.handle = sum.handle;
    add_to(waiting.gradient, sum.gradient, /*may_take=*/true);
  }
}

void GradientStore::reduce_whole(GradientSums& sums) {
  std::map<std::pair<std::vector<Rank>, at::ScalarType>, std::vector<HandleGradient*>> groups;
  for (const auto& tensor : sums.parameters.tensors()) {
    const auto found = accumulated_.find(tensor.id);
    if (found == accumulated_.end() || sums.parameters.is_sharded(tensor)) continue;
    groups[{sums.parameters.replicas_of(tensor), found->second.gradient.scalar_type()}].push_back(&found->second);
  }
  for (auto& [key, members] : groups) {
    const auto& ranks = key.first;
    if (ranks.size() < 2) continue;
    const auto flat = joined(members, std::ssize(ranks));
    sum_whole(sums, ranks, flat);
    std::int64_t offset = 0;
    for (auto* member : members) {
      const auto elements = member->gradient.numel();
      member->gradient = parameters::part_of(flat, offset, member->gradient.sizes().vec());
      offset += elements;
    }
  }
}

void GradientStore::reduce_into_shards(GradientSums& sums) {
  for (const auto& memory : sums.parameters.memories()) {
    if (memory == nullptr || memory->unit().zero != 1) continue;  // from level 2 on each call summed into shards
    const auto& unit = memory->unit();
    std::vector<std::pair<const parameters::ShardUnit::Place*, at::Tensor*>> gradients;
    for (const auto& place : unit.places) {
      const auto found = accumulated_.find(sums.parameters.named(place.names.front()).id);
      if (found != accumulated_.end()) gradients.emplace_back(&place, &found->second.gradient);
    }
    if (!gradients.empty()) sum_into_shards(sums, *memory, gradients);
  }
}

bool GradientStore::reduced_are_finite(c10::Device device) const {
  std::vector<at::Tensor> tensors;
  for (const auto& [id, sum] : reduced_) tensors.push_back(sum.gradient);
  return gradients::divide_and_check(tensors, 1, device);
}

std::vector<HandleGradient> GradientStore::take_reduced() {
  std::vector<HandleGradient> taken;
  for (auto& [id, sum] : std::exchange(reduced_, {})) taken.push_back(std::move(sum));
  return taken;
}

void GradientStore::drop() {
  accumulated_.clear();
  reduced_.clear();
}

}  // namespace autopar::gradients
