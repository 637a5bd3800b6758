#pragma once

#include <c10/core/Device.h>

#include <autopar/core/cluster.hpp>
#include <autopar/plan/choices.hpp>
#include <autopar/runtime/world.hpp>
#include <autopar/shard/group.hpp>

namespace autopar {

/// The device of this rank: CUDA device `local_rank` if there are CUDA devices, else the CPU.
/// @throws InvalidArgument if `wanted` is kCuda and there are none, or if a host has more ranks than CUDA devices and
/// `wanted` is not kCpu
[[nodiscard]] c10::Device device_of(const World& world, DeviceChoice wanted);

/// The device of this rank, as autopar.toml or AUTOPAR_DEVICE names it.
[[nodiscard]] c10::Device device(const World& world);

/// Groups of tensor-parallel layers (autopar/shard/group.hpp) on the device that `device(world)` returns.
[[nodiscard]] Groups init_groups(World& world, int group_size);

/// Describes the ranks' devices for the planner, from this rank's device: all devices are assumed equal.
[[nodiscard]] Cluster describe_cluster(const World& world, c10::Device device);

}  // namespace autopar
