#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
class OptimizerOptions;
}  // namespace torch::optim

namespace autopar::parameters {

/// All options of a parameter group that torch::optim writes to its archives, by name, such as `lr`. The values of
/// `betas` are `beta1` and `beta2`; a flag is 0 or 1.
using HyperParameters = std::map<std::string, double>;

/// The options of each parameter group.
/// @throws InvalidArgument for an optimizer without a descriptor
[[nodiscard]] std::vector<HyperParameters> hyper_parameters(const torch::optim::Optimizer& optimizer);

/// Options of each group with these values; the optimizer is not changed.
/// @throws CheckpointError, with group, name and value, if the number of groups or the names of options differ from the
/// optimizer's
/// @throws CheckpointError, with group, name and value, if a value is not finite or torch::optim's constructors refuse
/// it
[[nodiscard]] std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options_with(
    const torch::optim::Optimizer& optimizer, const std::vector<HyperParameters>& groups);

/// Assigns the result of `options_with`. Options keep their address, as when torch::optim loads. Does not throw.
void set_options(torch::optim::Optimizer& optimizer,
                 const std::vector<std::unique_ptr<torch::optim::OptimizerOptions>>& options);

}  // namespace autopar::parameters
