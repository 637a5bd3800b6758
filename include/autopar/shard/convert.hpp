#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include <autopar/shard/group.hpp>

namespace autopar {

/// The dim of a linear layer, of its path in the model ("head.2"); none: it stays as it is.
using ChooseDim = std::function<std::optional<int>(const std::string& path)>;

/// Shards linear layers of a model that all ranks have, keeping their values; nothing is sent. What can be reached is
///
///  - a ParallelLinear that was made without a group, wherever it is held: it is cut in place, its parameters stay the
///    same handles, and it gives slices from now on (dim 1). The member to declare in a model that is to be sharded:
///        ap::ParallelLinear fc{nullptr};      // in place of nn::Linear; dense until it is converted
///  - a torch::nn::Linear in a torch::nn::Sequential, at any depth: a GatheredLinear takes its place, between plain
///    tensors as before.
///
/// A torch::nn::Linear that a member holds cannot be: the member would go on pointing to the dense layer, and its type
/// is fixed where the model was compiled. That is an error, as is one that is held elsewhere, too, or in a container
/// that hands it out by its type (ModuleList, ModuleDict). Make optimizers afterwards.
/// @return the paths of the layers that were cut
/// @throws InvalidArgument, with nothing changed, naming the layer and what to declare
std::vector<std::string> convert_parallel_linear(torch::nn::Module& model, const Group& group, const ChooseDim& choose);

/// All linear layers.
std::vector<std::string> convert_parallel_linear(torch::nn::Module& model, const Group& group, int dim);

/// Those that are named, by path. @throws InvalidArgument, too, for a path that is no linear layer's
std::vector<std::string> convert_parallel_linear(torch::nn::Module& model, const Group& group,
                                                 const std::map<std::string, int>& dims);

}  // namespace autopar
