#include "torch/checkpoint/checkpoint.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/optim/optimizer.h>

#include <autopar/io/folder_lock.hpp>

#include "torch/checkpoint/checkpoint_items.hpp"
#include "torch/checkpoint/saving.hpp"
#include "torch/parameters/part_access.hpp"

namespace autopar::checkpoint {

void save_checkpoint(World& world, CheckpointFormat format, const std::filesystem::path& folder,
                     const std::vector<ShardedTensorMetadata>& tensors,
                     const std::vector<torch::optim::Optimizer*>& optimizers, const CheckpointInfo& info,
                     const std::map<std::string, KeptValue>& kept) {
  Saving saving(world, format, folder, tensors, optimizers, info, kept);
  std::optional<FolderLock> held;
  saving.agree([&] { held.emplace(folder); });
  saving.write();
  saving.publish();
}

std::vector<at::Tensor> gather_tensors(World& world, const std::vector<ShardedTensorMetadata>& tensors) {
  std::vector<at::Tensor> out;
  for (const auto& item : model_items(tensors)) {
    auto data = to_root(world, item);
    if (world.rank() == 0) out.push_back(data.clone());
  }
  return out;
}

std::unique_ptr<torch::optim::Optimizer> gather_optimizer(World& world,
                                                          const std::vector<ShardedTensorMetadata>& tensors,
                                                          torch::optim::Optimizer& optimizer) {
  std::map<const void*, std::vector<parameters::StateEntry>> gathered;  // by handle
  auto* const one = &optimizer;
  const auto items = state_items(tensors, std::span(&one, 1));
  const auto there = existing(world, items);
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (there[i] == 0) continue;
    const auto data = to_root(world, items[i]);
    if (world.rank() != 0) continue;
    gathered[items[i].tensor->handle.unsafeGetTensorImpl()].emplace_back(items[i].state, data.clone());
  }
  if (world.rank() != 0) return nullptr;
  const auto is_placed = [&](const at::Tensor& parameter) {
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](const auto& tensor) { return tensor.handle.is_same(parameter); });
  };
  auto whole = parameters::same_optimizer(optimizer);
  for (std::size_t g = 0; g < whole->param_groups().size(); ++g) {
    const auto& handles = optimizer.param_groups()[g].params();
    for (std::size_t i = 0; i < handles.size(); ++i) {
      auto state = is_placed(handles[i]) ? gathered[handles[i].unsafeGetTensorImpl()]
                                         : parameters::state_of(optimizer, handles[i]);
      for (auto& [name, value] : state) value = to_cpu(value).clone();
      if (!state.empty()) parameters::set_state(*whole, whole->param_groups()[g].params()[i], state);
    }
  }
  return whole;
}

at::Tensor gather_tensor(World& world, const ShardedTensorMetadata& tensor) {
  const parameters::PartAccess access;
  const std::vector<ShardedTensorMetadata> one{tensor};
  const auto item = model_items(one).front();
  const auto whole = empty_for(item.entry);
  const std::size_t senders = item.shards().empty() ? 1 : item.holders().size();
  for (std::size_t h = 0; h < senders; ++h) {
    const auto part = item.shards().empty() ? parameters::ShardSlices(Interval{0, whole.numel()}) : item.shards()[h];
    if (part.empty()) continue;
    const bool mine = item.holders()[h] == world.rank_id();
    const auto travelling = mine ? to_cpu(item.value()) : at::empty({part.size()}, whole.options());
    const auto raw = memory_of(travelling);
    const auto blob =
        world.broadcast(mine ? Blob(raw.begin(), raw.end()) : Blob(), item.holders()[h], "gather of " + tensor.name);
    std::memcpy(travelling.data_ptr(), blob.data(), blob.size());
    part.put(travelling, whole);
  }
  return whole;
}

}  // namespace autopar::checkpoint
