#include <autopar/torch/device.hpp>

#include <algorithm>

#include <autopar/core/error.hpp>
#include <autopar/io/config.hpp>

#include "torch/device/device_context.hpp"

namespace autopar {

c10::Device device_of(const World& world, DeviceChoice wanted) {
  if (wanted == DeviceChoice::kCpu) return c10::Device(c10::kCPU);
  const auto* const cuda = devices::cuda_context();
  const int devices = cuda == nullptr ? 0 : cuda->count();
  if (devices == 0) {
    if (wanted == DeviceChoice::kCuda) {
      throw InvalidArgument(
          "device = cuda, but this host has no CUDA device that this build can use; use device = auto");
    }
    return c10::Device(c10::kCPU);
  }
  if (world.local_size() > devices) {
    throw InvalidArgument("this host has " + std::to_string(world.local_size()) + " ranks and " +
                          std::to_string(devices) +
                          " CUDA devices; start at most one rank a device, let every rank see all devices of its host "
                          "(Slurm: --gpus-per-node with --gpu-bind=none, not --gpus-per-task), or set device = cpu");
  }
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(world.local_rank()));
}

c10::Device device(const World& world) {
  return device_of(world, resolve_options({}, process_config_sources()).options.device);
}

Groups init_groups(World& world, int group_size) { return init_groups(world, group_size, device(world)); }

Cluster describe_cluster(const World& world, c10::Device device) {
  Cluster cluster;
  cluster.devices = world.size();
  const int here = std::max(1, world.local_size());
  cluster.name = "this machine";
  const auto& context = devices::context_of(device.type());
  cluster.device = context.describe(device.is_cpu() ? c10::DeviceIndex{0} : device.index(), here);
  if (!device.is_cpu()) cluster.host = Host{devices::context_of(c10::kCPU).describe(0, here).memory};
  if (here > 1 || world.size() == 1) cluster.levels.push_back({"host", here, context.link_within_host()});
  if (world.size() > here) cluster.levels.push_back({"network", world.size(), {Seconds(2e-5), BytesPerSecond(3e9)}});
  return cluster;
}

}  // namespace autopar
