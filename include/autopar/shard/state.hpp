#pragma once

#include <string>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/ordered_dict.h>

#include <autopar/shard/group.hpp>

namespace autopar {

using StateDict = torch::OrderedDict<std::string, at::Tensor>;

/// Parameters and buffers of a model with shards as the dense model has them, on the CPU of the group's first rank;
/// empty on the others. Shards travel to that rank alone, one at a time. Collective over the group.
///
///     auto state = collect_state(*model, groups.tensor);
///     if (world.rank() == 0) torch::save(...);
///
/// @throws InvalidArgument if a module shards its parameters over another group
[[nodiscard]] StateDict collect_state(const torch::nn::Module& model, const Group& group);

/// The inverse: the dense model's state, on the group's first rank (what others pass is not read), becomes that of all
/// ranks, slices where there are shards, in the types and on the devices of the model. Replicas are groups of their
/// own, each with the state on its first rank. Collective over the group.
/// @throws InvalidArgument on all ranks, with nothing changed, if a name is missing or unknown, or sizes differ
void relocate_state(torch::nn::Module& model, const StateDict& state, const Group& group);

}  // namespace autopar
