#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/torch/optimizer_descriptor.hpp>

namespace autopar::parameters {

using StateKind = OptimizerDescriptor::StateKind;

/// The optimizer's own descriptor (DescribedOptimizer), or for torch::optim's optimizers the descriptor in
/// `parameters/known_optimizers.cpp`.
/// @throws InvalidArgument, with the class and what to do, for any other optimizer
[[nodiscard]] const OptimizerDescriptor& descriptor_of(const torch::optim::Optimizer& optimizer);

/// The descriptor of torch::optim's optimizers and classes derived from them; null for others.
[[nodiscard]] const OptimizerDescriptor* known_descriptor(const torch::optim::Optimizer& optimizer);

/// Bytes of optimizer state for each byte of a parameter, from the optimizer's options (the largest of its groups).
/// @param copies_of_whole  how many ranks hold state that is not sharded with its parameter
[[nodiscard]] double state_factor(const torch::optim::Optimizer& optimizer, int copies_of_whole = 1);

/// One tensor of a parameter's state. Counters are 0-dim int64 tensors, scalars 0-dim f64 tensors.
using StateEntry = std::pair<std::string, at::Tensor>;

/// One entry, or one element of a list, in the state of a parameter.
struct StateSlot {
  const OptimizerDescriptor::StateEntry* entry = nullptr;
  std::size_t index = 0;  ///< index in a list

  [[nodiscard]] std::string name() const { return entry->name_of(index); }
  [[nodiscard]] StateKind kind() const { return entry->kind; }
};

/// All entries that `optimizer` may keep for a parameter of a group with these options, in a fixed order.
[[nodiscard]] std::vector<StateSlot> state_slots(const torch::optim::Optimizer& optimizer,
                                                 const torch::optim::OptimizerOptions& options);
/// The names of state_slots().
[[nodiscard]] std::vector<std::string> state_names(const torch::optim::Optimizer& optimizer,
                                                   const torch::optim::OptimizerOptions& options);
/// The names for the group of this parameter.
/// @throws InvalidArgument if the parameter is in no group
[[nodiscard]] std::vector<std::string> state_names(const torch::optim::Optimizer& optimizer,
                                                   const at::Tensor& parameter);
/// The slot with this name, if the optimizer has such state under any options; otherwise `entry` is null.
[[nodiscard]] StateSlot state_slot(const OptimizerDescriptor& descriptor, const std::string& name);

/// The state of one parameter; empty before its first step. The optimizer's own tensors, not copies.
[[nodiscard]] std::vector<StateEntry> state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter);

/// The entry with this name; undefined if there is none.
[[nodiscard]] at::Tensor state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                                  const std::string& name);

/// Replaces the state of one parameter by these tensors, without copying them.
/// @throws CheckpointError if the entries do not fit this kind of optimizer
void set_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter, const std::vector<StateEntry>& entries);

/// Makes `torch::save` of the optimizer throw InvalidArgument with `message`, until its state is cleared. For this,
/// `state()` gets an entry that belongs to no parameter and cannot be written.
void refuse_to_save(torch::optim::Optimizer& optimizer, const std::string& message);
[[nodiscard]] bool refuses_to_save(torch::optim::Optimizer& optimizer);
void allow_to_save(torch::optim::Optimizer& optimizer);

/// An optimizer of the same class, groups and options without state. It has one placeholder for each parameter, in the
/// same order.
/// @throws InvalidArgument if its descriptor cannot make one
[[nodiscard]] std::unique_ptr<torch::optim::Optimizer> same_optimizer(const torch::optim::Optimizer& optimizer);

}  // namespace autopar::parameters
