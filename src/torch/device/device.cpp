#include <autopar/torch/device.hpp>

#include <algorithm>
#include <thread>

#include <unistd.h>

#ifdef AUTOPAR_TORCH_CUDA
#include <dlfcn.h>

#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#endif

#include <autopar/core/error.hpp>
#include <autopar/io/config.hpp>

namespace autopar {

namespace {

#ifdef AUTOPAR_TORCH_CUDA
// libtorch's CUDA library registers itself when it is loaded. It is not linked: a machine without a GPU may not even
// have what it links to. It must be there before the first question about CUDA, torch::manual_seed among them: libtorch
// remembers the answer. What goes wrong here is reported by cuda_devices().
[[gnu::constructor]] void load_cuda_library() {
  const bool has_driver = access("/dev/nvidiactl", F_OK) == 0 || access("/dev/dxg", F_OK) == 0;
  if (has_driver) dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL);
}
#endif

int cuda_devices() {
#ifdef AUTOPAR_TORCH_CUDA
  const int count = c10::cuda::device_count();
  if (count > 0 && dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    throw InvalidArgument(std::string("this host has CUDA devices, but libtorch_cuda.so cannot be loaded: ") +
                          dlerror() + "; install libtorch's CUDA libraries or set AUTOPAR_DEVICE=cpu");
  }
  return count;
#else
  return 0;
#endif
}

Link shared_memory() { return {Seconds(2e-6), BytesPerSecond(5e9)}; }

// Rates of one core of a present server; plans compare ranks of one kind, so only their ratios matter.
Device host_device(int ranks_here) {
  Device host;
  host.name = "cpu";
  const auto pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGE_SIZE);
  host.memory = Bytes(pages * page / std::max(1, ranks_here));
  const auto cores = std::max(1.0, static_cast<double>(std::thread::hardware_concurrency()));
  const auto share = std::max(1.0, cores / std::max(1, ranks_here));
  host.memory_bandwidth = BytesPerSecond(1e10);
  host.f64 = FlopsPerSecond(2e10 * share);
  host.f32 = host.tf32 = FlopsPerSecond(4e10 * share);
  host.f16 = host.bf16 = FlopsPerSecond(1e10 * share);
  host.efficiency = 0.7;
  host.launch = Seconds(2e-6);
  return host;
}

#ifdef AUTOPAR_TORCH_CUDA
int attribute(cudaDeviceAttr what, int device) {
  int value = 0;
  cudaDeviceGetAttribute(&value, what, device);
  return value;
}

// Dense matrix rates: multiply-adds of one multiprocessor in one cycle, by generation (NVIDIA's architecture papers).
Device cuda_device(int index) {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) {
    throw InvalidArgument("CUDA device " + std::to_string(index) +
                          " does not tell its properties; is it in use or lost?");
  }
  Device device;
  device.name = properties.name;
  device.memory = Bytes(static_cast<std::int64_t>(properties.totalGlobalMem));
  const double cycles = 1e3 * attribute(cudaDevAttrClockRate, index);
  const double units = cycles * properties.multiProcessorCount;
  const int generation = properties.major;
  device.f32 = FlopsPerSecond(2 * 128 * units * (generation == 7 ? 0.5 : 1));
  device.f64 = FlopsPerSecond(2 * 64 * units *
                              (generation >= 9                            ? 2
                               : generation == 8 && properties.minor == 0 ? 1
                                                                          : 0.5));
  const double half = generation >= 9 ? 4096 : generation == 8 ? 2048 : 1024;
  device.f16 = device.bf16 = FlopsPerSecond(half * units);
  device.tf32 = FlopsPerSecond(half * units / 2);
  const double memory_clock = 1e3 * attribute(cudaDevAttrMemoryClockRate, index);
  device.memory_bandwidth = BytesPerSecond(2 * memory_clock * attribute(cudaDevAttrGlobalMemoryBusWidth, index) / 8);
  device.launch = Seconds(5e-6);
  return device;
}
#endif

}  // namespace

c10::Device device_of(const World& world, const std::string& wanted) {
  if (wanted == "cpu") return c10::Device(c10::kCPU);
  const int devices = cuda_devices();
  if (devices == 0) {
    if (wanted == "cuda") {
      throw InvalidArgument(
          "device = cuda, but this host has no CUDA device that this build can use; use device = auto");
    }
    return c10::Device(c10::kCPU);
  }
  if (world.local_size() > devices) {
    throw InvalidArgument("this host has " + std::to_string(world.local_size()) + " ranks and " +
                          std::to_string(devices) +
                          " CUDA devices; start at most one rank a device, or set device = cpu");
  }
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(world.local_rank()));
}

c10::Device device(const World& world) {
  return device_of(world, resolve_options({}, process_config_sources()).options.device);
}

Cluster describe_cluster(const World& world, c10::Device device) {
  Cluster cluster;
  cluster.devices = world.size();
  const int here = std::max(1, world.local_size());
  cluster.device = host_device(here);
  cluster.name = "this machine";
  Link inside = shared_memory();
#ifdef AUTOPAR_TORCH_CUDA
  if (device.is_cuda()) {
    cluster.device = cuda_device(device.index());
    inside = {Seconds(8e-6), BytesPerSecond(1.5e11)};
    cluster.host = Host{host_device(here).memory};
  }
#else
  static_cast<void>(device);
#endif
  if (here > 1 || world.size() == 1) cluster.levels.push_back({"host", here, inside});
  if (world.size() > here) cluster.levels.push_back({"network", world.size(), {Seconds(2e-5), BytesPerSecond(3e9)}});
  return cluster;
}

}  // namespace autopar
