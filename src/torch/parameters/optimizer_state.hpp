#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::optim {
class Optimizer;
class OptimizerOptions;
}  // namespace torch::optim

namespace autopar {

enum class OptimizerKind { kSgd, kAdam, kAdamW, kRmsProp, kAdagrad, kLamb };

/// @throws InvalidArgument naming the class of any other optimizer: its state is not known
[[nodiscard]] OptimizerKind optimizer_kind(const torch::optim::Optimizer& optimizer);
[[nodiscard]] const char* name_of(OptimizerKind kind);

/// Bytes of optimizer state for each byte of a parameter, from the optimizer's options (the largest of its groups).
[[nodiscard]] double state_factor(const torch::optim::Optimizer& optimizer);

/// One tensor of a parameter's state; counters are int64 tensors without dimensions.
using StateEntry = std::pair<std::string, at::Tensor>;

/// Names of the state that `optimizer` keeps for a parameter once it has stepped, in a fixed order.
[[nodiscard]] std::vector<std::string> state_names(const torch::optim::Optimizer& optimizer,
                                                   const at::Tensor& parameter);

/// The same for the parameters of a group with these options.
[[nodiscard]] std::vector<std::string> state_names(const torch::optim::Optimizer& optimizer,
                                                   const torch::optim::OptimizerOptions& options);

/// The state of one parameter; empty before its first step. Tensors are the optimizer's own, not copies.
[[nodiscard]] std::vector<StateEntry> state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter);

/// Replaces the state of one parameter. Takes the tensors over.
/// @throws CheckpointError if the entries are not those of this kind of optimizer
void set_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter, const std::vector<StateEntry>& entries);

/// From now on `torch::save` of the optimizer throws InvalidArgument with `message`, until its state is cleared: it has
/// an entry more in `state()`, of no parameter, that cannot be written.
void refuse_to_save(torch::optim::Optimizer& optimizer, const std::string& message);

/// An optimizer of the same class, groups and options over placeholders, one for each parameter, with the same counts
/// and order of them and no state.
[[nodiscard]] std::unique_ptr<torch::optim::Optimizer> same_optimizer(const torch::optim::Optimizer& optimizer);

}  // namespace autopar
