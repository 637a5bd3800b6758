#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <autopar/shard/group.hpp>
#include <autopar/shard/sharded_parameter.hpp>

namespace autopar {

/// The parameters of a model of which this rank has slices, by their full names: those of its modules that are
/// `HasShards`, itself included.
[[nodiscard]] std::vector<ShardedParameter> sharded_parameters(const torch::nn::Module& model);

/// Each `.grad` becomes the sum over the group, in place. A gradient that some rank has is zero on ranks that have
/// none; one that none has stays undefined. Collective; messages of 32 MiB at most, and one of a number a parameter.
///
/// Which group: a backbone of which each rank feeds its own samples: all ranks. What a tensor group computes together
/// (a head and its row bias): the replicas.
void sum_gradients(const std::vector<at::Tensor>& parameters, const Group& group);

/// The recipe of a backbone whose ranks feed their own samples and a head of parallel layers: gradients of the modules
/// that are HasShards are summed over the replicas, all others over the world. Collective over the world.
void sum_gradients(const torch::nn::Module& model, const Groups& groups);

/// The first rank's values on all: parameters and buffers outside of modules that are HasShards over the world, those
/// inside over the replicas. Makes ranks that were seeded differently start alike. Collective over the world.
void broadcast_state(torch::nn::Module& model, const Groups& groups);

/// torch::nn::utils::clip_grad_norm_ of a model with shards: the norm of the whole gradient, each element counted once,
/// so all ranks scale alike. Call it on summed gradients. Collective over the groups of the shards: a number a rank.
/// @param p  of the norm, infinity allowed. @return the norm before
double clip_grad_norm_(const torch::nn::Module& model, double max_norm, double p = 2);

}  // namespace autopar
