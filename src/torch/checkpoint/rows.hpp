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

/// A tensor of a checkpoint: a parameter or buffer itself, or one of an optimizer's state for it.
struct Row {
  const PlacedTensor* tensor = nullptr;
  torch::optim::Optimizer* optimizer = nullptr;  ///< null: the parameter or buffer
  std::string state{};                           ///< its name in the optimizer's state
  TensorEntry entry{};                           ///< as a whole
  parameters::StateKind kind = parameters::StateKind::kLikeParameter;
  bool is_optional = false;  ///< state that may lack where other state of the parameter is there

  [[nodiscard]] const std::vector<Rank>& holders() const { return tensor->holders; }
  /// A state's number, without dimensions.
  [[nodiscard]] bool is_number() const {
    return kind == parameters::StateKind::kCounter || kind == parameters::StateKind::kScalar;
  }
  /// By holder; empty: each has all of it.
  [[nodiscard]] const std::vector<parameters::Slab>& shards() const;
  /// On a holder: what it has, not a copy. Undefined where there is none, as before an optimizer's first step.
  [[nodiscard]] at::Tensor value() const;
};

/// Where an optimizer has a parameter.
struct GroupMember {
  std::size_t optimizer = 0, group = 0;
};

/// By handle, of those that one of the optimizers holds.
[[nodiscard]] std::map<const void*, GroupMember> members_of(std::span<torch::optim::Optimizer* const> optimizers);

/// Rows refer to `tensors`, which must live as long.
[[nodiscard]] std::vector<Row> model_rows(const std::vector<PlacedTensor>& tensors);
/// @param slots  of the state of a parameter of this group
[[nodiscard]] std::vector<Row> state_rows(const std::vector<PlacedTensor>& tensors,
                                          std::span<torch::optim::Optimizer* const> optimizers,
                                          const std::function<std::vector<parameters::StateSlot>(GroupMember)>& slots);
/// Under the optimizers' options as they are.
[[nodiscard]] std::vector<Row> state_rows(const std::vector<PlacedTensor>& tensors,
                                          std::span<torch::optim::Optimizer* const> optimizers);

/// All rows in the order of a file's data: largest elements first, so that each lies at a multiple of its size.
[[nodiscard]] std::vector<Row> in_file_order(std::vector<Row> model, std::vector<Row> state);

/// Collective. @throws CheckpointError on every rank if some have other rows, as with other optimizers
void require_same_rows(World& world, const std::vector<Row>& rows, const std::string& subject);

/// Whether the first holder of each row has it. Collective.
[[nodiscard]] std::vector<char> existing(World& world, const std::vector<Row>& rows);

/// The row's data on rank 0's CPU; an undefined tensor elsewhere. Collective.
[[nodiscard]] at::Tensor to_root(World& world, const Row& row);

[[nodiscard]] at::Tensor to_cpu(const at::Tensor& tensor);
[[nodiscard]] at::Tensor empty_for(const TensorEntry& entry);
/// Of a dense CPU tensor.
[[nodiscard]] std::span<std::byte> memory_of(const at::Tensor& tensor);

}  // namespace autopar::checkpoint
