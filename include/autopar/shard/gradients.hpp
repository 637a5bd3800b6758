#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <autopar/shard/group.hpp>
#include <autopar/shard/sharded_parameter.hpp>

namespace autopar {

/// The sharded parameters of `model` by their full names: the shards of all its modules that are `HasShards`, including
/// itself.
[[nodiscard]] std::vector<ShardedParameter> sharded_parameters(const torch::nn::Module& model);

/// Sums each `.grad` over the group, in place. A gradient that only some ranks have counts as zero on the others; one
/// that no rank has stays undefined. Collective; messages of at most 32 MiB, and one with a number for each parameter.
///
/// Choose the group by what its ranks compute. If each rank runs a backbone on its own samples: all ranks. For a module
/// that a tensor group computes together (a head and its row bias): the replicas.
void sum_gradients(const std::vector<at::Tensor>& parameters, const Group& group);

/// For a backbone whose ranks have their own samples, and a head of parallel layers. Sums gradients of modules that are
/// HasShards over the replicas, all others over the world. Collective over the world.
void sum_gradients(const torch::nn::Module& model, const Groups& groups);

/// Copies the first rank's parameters and buffers to all ranks: over the replicas for modules that are HasShards, over
/// the world for others. Ranks with different seeds then start equal. Collective over the world.
void broadcast_state(torch::nn::Module& model, const Groups& groups);

/// torch::nn::utils::clip_grad_norm_ for a model with shards, after gradients were summed. The norm counts each element
/// once and is equal on all ranks. Collective over the groups of the shards: one number for each rank.
/// @param p  of the norm, may be infinite
/// @return the norm before
double clip_grad_norm_(const torch::nn::Module& model, double max_norm, double p = 2);

}  // namespace autopar
