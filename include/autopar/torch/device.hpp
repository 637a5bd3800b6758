#pragma once

#include <string>

#include <c10/core/Device.h>

#include <autopar/core/cluster.hpp>
#include <autopar/runtime/world.hpp>
#include <autopar/shard/group.hpp>

namespace autopar {

/// The device of this rank: CUDA device `local_rank` where there are CUDA devices, else the CPU.
/// @param wanted  "auto", "cpu" or "cuda"
/// @throws InvalidArgument if a host has more ranks than CUDA devices, unless the CPU was asked for
[[nodiscard]] c10::Device device_of(const World& world, const std::string& wanted);

/// The same with the device that autopar.toml or AUTOPAR_DEVICE names.
[[nodiscard]] c10::Device device(const World& world);

/// Groups of tensor-parallel layers (autopar/shard/group.hpp) on that device.
[[nodiscard]] Groups init_groups(World& world, int group_size);

/// What a plan needs to know of the ranks' devices, as this rank sees its own: all are taken to be equal.
[[nodiscard]] Cluster describe_cluster(const World& world, c10::Device device);

}  // namespace autopar
