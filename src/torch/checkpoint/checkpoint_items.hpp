#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/io/safetensors.hpp>

#include "torch/checkpoint/checkpoint.hpp"

namespace autopar::checkpoint {

/// A tensor of a checkpoint: a parameter or buffer, or one tensor of an optimizer's state for a parameter.
struct CheckpointItem {
  const ShardedTensorMetadata* tensor = nullptr;
  torch::optim::Optimizer* optimizer = nullptr;  ///< null: the parameter or buffer
  std::string state{};                           ///< name of the state in the optimizer
  TensorEntry entry{};                           ///< of the unsharded tensor
  parameters::StateKind kind = parameters::StateKind::kLikeParameter;
  bool is_optional = false;  ///< state that may be missing although the parameter has other state

  [[nodiscard]] const std::vector<Rank>& holders() const { return tensor->holders; }
  /// Whether it is a number of the state, 0-dim.
  [[nodiscard]] bool is_number() const {
    return kind == parameters::StateKind::kCounter || kind == parameters::StateKind::kScalar;
  }
  /// By holder; empty: each has the whole tensor.
  [[nodiscard]] const std::vector<parameters::ShardSlices>& shards() const;
  /// On a holder: its part, not a copy. Undefined if there is none, as before an optimizer's first step.
  [[nodiscard]] at::Tensor value() const;
};

/// The optimizer and group of a parameter.
struct GroupMember {
  std::size_t optimizer = 0, group = 0;
};

/// By handle, for parameters that one of the optimizers holds.
[[nodiscard]] std::map<const void*, GroupMember> members_of(std::span<torch::optim::Optimizer* const> optimizers);

/// Items refer to `tensors`, which must outlive them.
[[nodiscard]] std::vector<CheckpointItem> model_items(const std::vector<ShardedTensorMetadata>& tensors);
/// @param slots  returns the state slots of a parameter of this group
[[nodiscard]] std::vector<CheckpointItem> state_items(
    const std::vector<ShardedTensorMetadata>& tensors, std::span<torch::optim::Optimizer* const> optimizers,
    const std::function<std::vector<parameters::StateSlot>(GroupMember)>& slots);
/// With the slots of the optimizers' current options.
[[nodiscard]] std::vector<CheckpointItem> state_items(const std::vector<ShardedTensorMetadata>& tensors,
                                                      std::span<torch::optim::Optimizer* const> optimizers);

/// All items in the order of the file's data: by descending element size, so that each is aligned to its element size.
[[nodiscard]] std::vector<CheckpointItem> in_file_order(std::vector<CheckpointItem> model,
                                                        std::vector<CheckpointItem> state);

/// Checks that all ranks have the same items. Collective.
/// @throws CheckpointError, on every rank, if some ranks have other items, for example because of other optimizers
void require_same_items(World& world, const std::vector<CheckpointItem>& items, const std::string& subject);

/// By item, whether its first holder has it. Collective.
[[nodiscard]] std::vector<char> existing(World& world, const std::vector<CheckpointItem>& items);

/// The item's data on rank 0's CPU; undefined on other ranks. Collective.
[[nodiscard]] at::Tensor to_root(World& world, const CheckpointItem& item);

[[nodiscard]] at::Tensor to_cpu(const at::Tensor& tensor);
[[nodiscard]] at::Tensor empty_for(const TensorEntry& entry);
/// The bytes of a dense CPU tensor.
[[nodiscard]] std::span<std::byte> memory_of(const at::Tensor& tensor);

}  // namespace autopar::checkpoint
