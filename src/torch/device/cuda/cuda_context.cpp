#include "torch/device/cuda/cuda_context.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>

#include <unistd.h>

#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <autopar/core/error.hpp>

#include "torch/device/cuda/recorded_generator.hpp"
#include "torch/device/cuda/recorded_graph.hpp"

namespace autopar::devices {

namespace {

// libtorch's CUDA library registers itself when it is loaded. It is not linked, since a machine without a GPU may lack
// its dependencies. It must be loaded before the first question about CUDA, such as torch::manual_seed, because
// libtorch remembers the answer. cuda_devices() reports errors.
[[gnu::constructor]] void load_cuda_library() {
  const bool has_driver = access("/dev/nvidiactl", F_OK) == 0 || access("/dev/dxg", F_OK) == 0;
  if (has_driver) dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL);
}

int attribute(cudaDeviceAttr what, int device) {
  int value = 0;
  cudaDeviceGetAttribute(&value, what, device);
  return value;
}

// Dense matrix rates: multiply-adds of one multiprocessor in one cycle, by generation. Source: NVIDIA's architecture
// papers.
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

}  // namespace

int CudaContext::count() const {
  const int count = c10::cuda::device_count();
  if (count > 0 && dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    throw InvalidArgument(std::string("this host has CUDA devices, but libtorch_cuda.so cannot be loaded: ") +
                          dlerror() + "; install libtorch's CUDA libraries or set AUTOPAR_DEVICE=cpu");
  }
  return count;
}

Device CudaContext::describe(c10::DeviceIndex index, int) const { return cuda_device(index); }

Link CudaContext::link_within_host() const { return {Seconds(8e-6), BytesPerSecond(1.5e11)}; }

void* CudaContext::current_stream(c10::DeviceIndex index) const {
  return c10::cuda::getCurrentCUDAStream(index).stream();
}

at::Tensor CudaContext::host_memory(std::int64_t elements, c10::ScalarType dtype, c10::DeviceIndex index) const {
  const c10::DeviceGuard on_its_device({c10::kCUDA, index});  // the runtime makes a context on the current device
  const auto bytes = static_cast<std::size_t>(elements) * c10::elementSize(dtype);
  void* memory = nullptr;
  if (const auto status = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable); status != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    throw InvalidArgument("offload: the host gives no " + std::to_string(bytes) + " bytes of page-locked memory (" +
                          cudaGetErrorString(status) + "); set offload = none, or use a host with more memory");
  }
  const std::array<std::int64_t, 1> sizes{elements};
  return at::from_blob(
      memory, sizes, [](void* data) { static_cast<void>(cudaFreeHost(data)); }, at::TensorOptions().dtype(dtype));
}

void CudaContext::multiply_unless_one(const std::vector<at::Tensor>& tensors, const at::Tensor& factor) const {
  multiply_each(tensors, factor);
}

std::unique_ptr<DeviceRecording> CudaContext::record(c10::Stream stream, const std::function<void()>& work,
                                                     const DeviceRecording* beside) const {
  return record_graph(stream, work, beside);
}

at::Generator CudaContext::recorded_generator(const at::Tensor& seed) const { return generator_by_memory(seed); }

}  // namespace autopar::devices
