#include "torch/checkpoint/rows.hpp"

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

std::vector<std::int64_t> sizes_of(const PlacedTensor& tensor) {
  return tensor.shards.empty() ? tensor.handle.sizes().vec() : tensor.sizes;
}

TensorEntry entry_of(const parameters::StateSlot& slot, const PlacedTensor& tensor, std::string name) {
  if (slot.kind() == parameters::StateKind::kCounter) return {std::move(name), DType::kI64, {}};
  if (slot.kind() == parameters::StateKind::kScalar) return {std::move(name), DType::kF64, {}};
  auto sizes = sizes_of(tensor);
  if (slot.kind() == parameters::StateKind::kWhole) sizes = slot.entry->sizes(sizes);
  return {std::move(name), parameters::dtype_of(tensor.handle.scalar_type()), std::move(sizes)};
}

std::uint64_t fingerprint_of(const std::vector<Row>& rows) {
  std::string text;
  for (const auto& row : rows) {
    text += row.entry.name + '\n' + std::to_string(static_cast<int>(row.entry.dtype));
    for (const auto size : row.entry.shape) text += ' ' + std::to_string(size);
    text += '\n';
  }
  return checksum(std::as_bytes(std::span(text)));
}

}  // namespace

const std::vector<parameters::Slab>& Row::shards() const {
  static const std::vector<parameters::Slab> kNone;
  return kind == parameters::StateKind::kLikeParameter ? tensor->shards : kNone;
}

at::Tensor Row::value() const {
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

std::vector<Row> model_rows(const std::vector<PlacedTensor>& tensors) {
  std::vector<Row> rows;
  for (const auto& tensor : tensors) {
    const auto type = parameters::dtype_of(tensor.handle.scalar_type());
    rows.push_back({&tensor, nullptr, {}, {"model." + tensor.name, type, sizes_of(tensor)}});
  }
  return rows;
}

std::vector<Row> state_rows(const std::vector<PlacedTensor>& tensors,
                            std::span<torch::optim::Optimizer* const> optimizers,
                            const std::function<std::vector<parameters::StateSlot>(GroupMember)>& slots) {
  const auto members = members_of(optimizers);
  std::vector<Row> rows;
  for (const auto& tensor : tensors) {
    const auto member = members.find(tensor.handle.unsafeGetTensorImpl());
    if (member == members.end()) continue;
    for (const auto& slot : slots(member->second)) {
      const auto name = slot.name();
      rows.push_back({&tensor, optimizers[member->second.optimizer], name,
                      entry_of(slot, tensor, "optimizer." + tensor.name + "." + name), slot.kind(),
                      slot.entry->is_list});
    }
  }
  return rows;
}

std::vector<Row> state_rows(const std::vector<PlacedTensor>& tensors,
                            std::span<torch::optim::Optimizer* const> optimizers) {
  return state_rows(tensors, optimizers, [&](GroupMember member) {
    const auto& optimizer = *optimizers[member.optimizer];
    return parameters::state_slots(optimizer, optimizer.param_groups()[member.group].options());
  });
}

std::vector<Row> in_file_order(std::vector<Row> model, std::vector<Row> state) {
  auto rows = std::move(model);
  rows.insert(rows.end(), std::make_move_iterator(state.begin()), std::make_move_iterator(state.end()));
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return size_of(a.entry.dtype) > size_of(b.entry.dtype); });
  return rows;
}

void require_same_rows(World& world, const std::vector<Row>& rows, const std::string& subject) {
  const auto mine = fingerprint_of(rows);
  const auto all = world.all_gather(std::as_bytes(std::span(&mine, 1)), "list of a checkpoint's tensors");
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    throw CheckpointError(subject + ": rank 0 and rank " + std::to_string(rank) +
                          " would keep other tensors; pass the same optimizers with the same options on every rank");
  }
}

std::vector<char> existing(World& world, const std::vector<Row>& rows) {
  std::vector<std::int64_t> there(rows.size(), 0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].holders().front() == world.rank_id() && rows[i].value().defined()) there[i] = 1;
  }
  world.all_reduce_sum(std::span(there), "list of a checkpoint's tensors");
  return {there.begin(), there.end()};
}

at::Tensor to_root(World& world, const Row& row) {
  const bool root = world.rank() == 0, all = row.shards().empty();
  at::Tensor data;
  const std::size_t senders = all ? 1 : row.holders().size();
  for (std::size_t h = 0; h < senders; ++h) {
    const Rank from = row.holders()[h];
    if (!all && row.shards()[h].empty()) continue;
    const at::Tensor mine = from == world.rank_id() ? to_cpu(row.value()) : at::Tensor();
    if (mine.defined() && !root) world.send(memory_of(mine), Rank(0), row.entry.name);
    if (!root) continue;
    if (mine.defined() && all) return mine;
    if (!data.defined()) data = empty_for(row.entry);
    const auto part = all ? parameters::Slab(Interval{0, data.numel()}) : row.shards()[h];
    if (mine.defined()) {
      part.put(mine, data);
      continue;
    }
    const auto places = part.views(data);
    const bool in_place = places.size() == 1 && places.front().is_contiguous();
    const auto arriving = in_place ? places.front() : at::empty({part.size()}, data.options());
    world.receive(memory_of(arriving), from, row.entry.name);
    if (!in_place) part.put(arriving, data);
  }
  if (root && !data.defined()) data = empty_for(row.entry);  // the row has no elements
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
