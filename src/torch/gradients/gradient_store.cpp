#include "torch/gradients/gradient_store.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include "shard/tensor_buffer.hpp"
#include "torch/gradients/gradient_factor.hpp"

namespace autopar::gradients {

namespace {

/// Gradients of some parameters of a unit, each whole on every member: afterwards each member has its shards of the
/// sums.
void sum_into_shards(AnyTransport& wire, GroupId group, const parameters::ShardMemory& memory,
                     const std::vector<std::pair<const parameters::ShardUnit::Place*, at::Tensor*>>& gradients) {
  const auto& whole = memory.whole();
  const auto flat = at::zeros({memory.unit().elements}, whole.options().dtype(memory.unit().dtype));
  for (const auto& [place, gradient] : gradients)
    parameters::part_of(flat, place->offset, place->sizes).copy_(*gradient);
  const auto buffer = buffer_of(flat);
  wire.wait(wire.reduce_scatter(buffer, summed_dtype(flat.scalar_type()), group));
  const auto share = flat.narrow(0, memory.own().begin, memory.own().size()).clone();
  for (const auto& [place, gradient] : gradients) {
    const auto within = memory.within_part(*place);
    *gradient = parameters::part_of(share, within.begin, {within.size()});
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
    std::vector<at::Tensor> parts;
    for (const auto* member : members) parts.push_back(member->gradient.reshape({-1}));
    auto flat = at::cat(parts);
    const auto buffer = buffer_of(flat);
    sums.wire.wait(sums.wire.all_reduce(buffer, summed_dtype(flat.scalar_type()), sums.groups.at(ranks)));
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
    if (!gradients.empty()) sum_into_shards(sums.wire, sums.groups.at(unit.ranks), *memory, gradients);
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
