#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include <autopar/shard/group.hpp>

namespace autopar {

/// Returns the dim for the linear layer at this path ("head.2"), or nothing to leave the layer unchanged.
using ChooseDim = std::function<std::optional<int>(const std::string& path)>;

/// Shards linear layers of a model that is equal on all ranks. Values are kept, and nothing is sent. It converts
///
///  - a ParallelLinear that was made without a group, wherever it is held. It is sharded in place: its parameters keep
///    their handles, and with dim 1 it returns slices. Declare this member in a model that is to be sharded:
///        ap::ParallelLinear fc{nullptr};      // in place of nn::Linear; dense until it is converted
///  - a torch::nn::Linear in a torch::nn::Sequential, at any depth. A GatheredLinear replaces it; inputs and outputs
/// stay
///    plain tensors.
///
/// A torch::nn::Linear that is a member cannot be replaced. The member would still point to the dense layer, and its
/// type is fixed at compile time. That is an error, as is a layer that is also held elsewhere, or in a container that
/// returns it by its type (ModuleList, ModuleDict). Make optimizers afterwards.
/// @return the paths of the converted layers
/// @throws InvalidArgument with the layer and what to declare; then nothing is changed
std::vector<std::string> convert_parallel_linear(torch::nn::Module& model, const Group& group, const ChooseDim& choose);

/// Converts all linear layers.
std::vector<std::string> convert_parallel_linear(torch::nn::Module& model, const Group& group, int dim);

/// Converts the layers at these paths.
/// @throws InvalidArgument also for a path without a linear layer
std::vector<std::string> convert_parallel_linear(torch::nn::Module& model, const Group& group,
                                                 const std::map<std::string, int>& dims);

}  // namespace autopar
