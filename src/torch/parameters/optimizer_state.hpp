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

/// What is known of this optimizer: what it says itself (DescribedOptimizer), or what
/// `parameters/known_optimizers.cpp` says of torch::optim's.
/// @throws InvalidArgument naming the class of any other optimizer, and the ways out
[[nodiscard]] const OptimizerDescriptor& descriptor_of(const torch::optim::Optimizer& optimizer);

/// Of torch::optim's optimizers, and those that derive from them; null for others.
[[nodiscard]] const OptimizerDescriptor* known_descriptor(const torch::optim::Optimizer& optimizer);

/// Bytes of optimizer state for each byte of a parameter, from the optimizer's options (the largest of its groups).
/// @param copies_of_whole  how often state is there that is not in parts where its parameter is
[[nodiscard]] double state_factor(const torch::optim::Optimizer& optimizer, int copies_of_whole = 1);

/// One tensor of a parameter's state; counters are int64 tensors without dimensions, scalars f64 ones.
using StateEntry = std::pair<std::string, at::Tensor>;

/// A place in the state of a parameter.
struct StateSlot {
  const OptimizerDescriptor::StateEntry* entry = nullptr;
  std::size_t index = 0;  ///< in a list

  [[nodiscard]] std::string name() const { return entry->name_of(index); }
  [[nodiscard]] StateKind kind() const { return entry->kind; }
};

/// Of all state that `optimizer` may keep for a parameter of a group with these options, in a fixed order.
[[nodiscard]] std::vector<StateSlot> state_slots(const torch::optim::Optimizer& optimizer,
                                                 const torch::optim::OptimizerOptions& options);
/// Their names.
[[nodiscard]] std::vector<std::string> state_names(const torch::optim::Optimizer& optimizer,
                                                   const torch::optim::OptimizerOptions& options);
/// The same for the group of this parameter. @throws InvalidArgument if it is in none
[[nodiscard]] std::vector<std::string> state_names(const torch::optim::Optimizer& optimizer,
                                                   const at::Tensor& parameter);
/// The slot of this name, if the optimizer has such state under any options; `entry` is null if not.
[[nodiscard]] StateSlot state_slot(const OptimizerDescriptor& descriptor, const std::string& name);

/// The state of one parameter; empty before its first step. Tensors are the optimizer's own, not copies.
[[nodiscard]] std::vector<StateEntry> state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter);

/// The entry of this name; undefined if there is none.
[[nodiscard]] at::Tensor state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                                  const std::string& name);

/// Replaces the state of one parameter. Takes the tensors over.
/// @throws CheckpointError if the entries are not those of this kind of optimizer
void set_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter, const std::vector<StateEntry>& entries);

/// From now on `torch::save` of the optimizer throws InvalidArgument with `message`, until its state is cleared: it has
/// an entry more in `state()`, of no parameter, that cannot be written.
void refuse_to_save(torch::optim::Optimizer& optimizer, const std::string& message);
[[nodiscard]] bool refuses_to_save(torch::optim::Optimizer& optimizer);
void allow_to_save(torch::optim::Optimizer& optimizer);

/// An optimizer of the same class, groups and options over placeholders, one for each parameter, with the same counts
/// and order of them and no state.
/// @throws InvalidArgument if its descriptor cannot make one
[[nodiscard]] std::unique_ptr<torch::optim::Optimizer> same_optimizer(const torch::optim::Optimizer& optimizer);

}  // namespace autopar::parameters
