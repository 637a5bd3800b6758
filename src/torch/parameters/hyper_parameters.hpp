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

/// Options of a parameter group by name, all that torch::optim writes to its archives: `lr`, `momentum`,
/// `weight_decay`, …; `betas` are `beta1` and `beta2`, a flag is 0 or 1.
using HyperParameters = std::map<std::string, double>;

/// Of each parameter group. @throws InvalidArgument for an optimizer that is not known
[[nodiscard]] std::vector<HyperParameters> hyper_parameters(const torch::optim::Optimizer& optimizer);

/// Options of each group with these values; the optimizer stays as it is.
/// @throws CheckpointError naming group, name and value where `groups` are of another number than the optimizer's,
/// names
///         are not those of its options, or a value is one that torch::optim's constructors refuse, or not finite
[[nodiscard]] std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options_with(
    const torch::optim::Optimizer& optimizer, const std::vector<HyperParameters>& groups);

/// Takes over what `options_with` gave: options keep their address, as when torch::optim loads. Throws nothing.
void set_options(torch::optim::Optimizer& optimizer,
                 const std::vector<std::unique_ptr<torch::optim::OptimizerOptions>>& options);

}  // namespace autopar::parameters
