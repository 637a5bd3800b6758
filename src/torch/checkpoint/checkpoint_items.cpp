#include "torch/checkpoint/checkpoint_items.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/optim/optimizer.h>

#include <autopar/core/error.hpp>
#include <autopar/io/checksum.hpp>

#include "torch/parameters/gradient_buckets.hpp"

namespace autopar::checkpoint {

namespace {

std::vector<std::int64_t> sizes_of(const ShardedTensorMetadata& tensor) {
  return tensor.shards.empty() ? tensor.handle.sizes().vec() : tensor.sizes;
}

TensorEntry entry_of(const parameters::StateSlot& slot, const ShardedTensorMetadata& tensor, std::string name) {
  if (slot.kind() == parameters::StateKind::kCounter) return {std::move(name), DType::kI64, {}};
  if (slot.kind() == parameters::StateKind::kScalar) return {std::move(name), DType::kF64, {}};
  auto sizes = sizes_of(tensor);
  if (slot.kind() == parameters::StateKind::kWhole) sizes = slot.entry->sizes(sizes);
  return {std::move(name), parameters::dtype_of(tensor.handle.scalar_type()), std::move(sizes)};
}

std::uint64_t fingerprint_of(const std::vector<CheckpointItem>& items) {
  std::string text;
  for (const auto& item : items) {
    text += item.entry.name + '\n' + std::to_string(static_cast<int>(item.entry.dtype));
    for (const auto size : item.entry.shape) text += ' ' + std::to_string(size);
    text += '\n';
  }
  return checksum(std::as_bytes(std::span(text)));
}

}  // namespace

const std::vector<parameters::ShardSlices>& CheckpointItem::shards() const {
  static const std::vector<parameters::ShardSlices> kNone;
  return kind == parameters::StateKind::kLikeParameter ? tensor->shards : kNone;
}

at::Tensor CheckpointItem::value() const {
  if (optimizer == nullptr) return tensor->handle;
  return parameters::state_of(*optimizer, tensor->handle, state);
}

std::map<const void*, GroupMember> members_of(std::span<torch::optim::Optimizer* const> optimizers) {
  std::map<const void*, GroupMember> members;
  for (std::size_t o = 0; o < optimizers.size(); ++o) {
    const auto& groups = optimizers[o]->param_groups();
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (const auto& parameter : groups[g].params()) {
        members.emplace(parameter.unsafeGetTensorImpl(), GroupMember{o, g});
      }
    }
  }
  return members;
}

std::vector<CheckpointItem> model_items(const std::vector<ShardedTensorMetadata>& tensors) {
  std::vector<CheckpointItem> items;
  for (const auto& tensor : tensors) {
    const auto type = parameters::dtype_of(tensor.handle.scalar_type());
    items.push_back({&tensor, nullptr, {}, {"model." + tensor.name, type, sizes_of(tensor)}});
  }
  return items;
}

std::vector<CheckpointItem> state_items(const std::vector<ShardedTensorMetadata>& tensors,
                                        std::span<torch::optim::Optimizer* const> optimizers,
                                        const std::function<std::vector<parameters::StateSlot>(GroupMember)>& slots) {
  const auto members = members_of(optimizers);
  std::vector<CheckpointItem> items;
  for (const auto& tensor : tensors) {
    const auto member = members.find(tensor.handle.unsafeGetTensorImpl());
    if (member == members.end()) continue;
    for (const auto& slot : slots(member->second)) {
      const auto name = slot.name();
      items.push_back({&tensor, optimizers[member->second.optimizer], name,
                       entry_of(slot, tensor, "optimizer." + tensor.name + "." + name), slot.kind(),
                       slot.entry->is_list});
    }
  }
  return items;
}

std::vector<CheckpointItem> state_items(const std::vector<ShardedTensorMetadata>& tensors,
                                        std::span<torch::optim::Optimizer* const> optimizers) {
  return state_items(tensors, optimizers, [&](GroupMember member) {
    const auto& optimizer = *optimizers[member.optimizer];
    return parameters::state_slots(optimizer, optimizer.param_groups()[member.group].options());
  });
}

std::vector<CheckpointItem> in_file_order(std::vector<CheckpointItem> model, std::vector<CheckpointItem> state) {
  auto items = std::move(model);
  items.insert(items.end(), std::make_move_iterator(state.begin()), std::make_move_iterator(state.end()));
  std::stable_sort(items.begin(), items.end(), [](const CheckpointItem& a, const CheckpointItem& b) {
    return size_of(a.entry.dtype) > size_of(b.entry.dtype);
  });
  return items;
}

void require_same_items(World& world, const std::vector<CheckpointItem>& items, const std::string& subject) {
  const auto mine = fingerprint_of(items);
  const auto all = world.all_gather(std::as_bytes(std::span(&mine, 1)), "list of a checkpoint's tensors");
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    throw CheckpointError(subject + ": rank 0 and rank " + std::to_string(rank) +
                          " would keep other tensors; pass the same optimizers with the same options on every rank");
  }
}

std::vector<char> existing(World& world, const std::vector<CheckpointItem>& items) {
  std::vector<std::int64_t> there(items.size(), 0);
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].holders().front() == world.rank_id() && items[i].value().defined()) there[i] = 1;
  }
  world.all_reduce_sum(std::span(there), "list of a checkpoint's tensors");
  return {there.begin(), there.end()};
}

at::Tensor to_root(World& world, const CheckpointItem& item) {
  const bool root = world.rank() == 0, all = item.shards().empty();
  at::Tensor data;
  const std::size_t senders = all ? 1 : item.holders().size();
  for (std::size_t h = 0; h < senders; ++h) {
    const Rank from = item.holders()[h];
    if (!all && item.shards()[h].empty()) continue;
    const at::Tensor mine = from == world.rank_id() ? to_cpu(item.value()) : at::Tensor();
    if (mine.defined() && !root) world.send(memory_of(mine), Rank(0), item.entry.name);
    if (!root) continue;
    if (mine.defined() && all) return mine;
    if (!data.defined()) data = empty_for(item.entry);
    const auto part = all ? parameters::ShardSlices(Interval{0, data.numel()}) : item.shards()[h];
    if (mine.defined()) {
      part.put(mine, data);
      continue;
    }
    const auto places = part.views(data);
    const bool in_place = places.size() == 1 && places.front().is_contiguous();
    const auto arriving = in_place ? places.front() : at::empty({part.size()}, data.options());
    world.receive(memory_of(arriving), from, item.entry.name);
    if (!in_place) part.put(arriving, data);
  }
  if (root && !data.defined()) data = empty_for(item.entry);  // the item has no elements
  return data;
}

at::Tensor to_cpu(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  return tensor.detach().to(at::kCPU).contiguous();
}

at::Tensor empty_for(const TensorEntry& entry) {
  return at::empty(entry.shape, at::TensorOptions().dtype(parameters::scalar_type_of(entry.dtype)));
}

std::span<std::byte> memory_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

}  // namespace autopar::checkpoint
