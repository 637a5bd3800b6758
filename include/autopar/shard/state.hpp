#pragma once

#include <string>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/ordered_dict.h>

#include <autopar/shard/group.hpp>

namespace autopar {

using StateDict = torch::OrderedDict<std::string, at::Tensor>;

/// The dense model's parameters and buffers, on the CPU of the group's first rank; empty on other ranks. Shards are
/// sent to the first rank one at a time. Collective over the group.
///
///     auto state = collect_state(*model, groups.tensor);
///     if (world.rank() == 0) torch::save(...);
///
/// @throws InvalidArgument if a module shards its parameters over another group
[[nodiscard]] StateDict collect_state(const torch::nn::Module& model, const Group& group);

/// The inverse of collect_state: distributes the dense model's state from the group's first rank. Other ranks' `state`
/// is ignored. Values are converted to the model's types and devices. Each replica is its own group, with the state on
/// its first rank. Collective over the group.
/// @throws InvalidArgument, on all ranks, if a name is missing or unknown or sizes differ; then nothing is changed
void relocate_state(torch::nn::Module& model, const StateDict& state, const Group& group);

}  // namespace autopar
