#include "torch/device/host_copies.hpp"

#include <array>
#include <string>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#ifdef AUTOPAR_TORCH_CUDA
#include <cuda_runtime_api.h>
#endif

#include <autopar/core/error.hpp>

namespace autopar {

at::Tensor host_memory(std::int64_t elements, c10::ScalarType dtype, c10::Device device) {
  const auto options = at::TensorOptions().dtype(dtype);
#ifdef AUTOPAR_TORCH_CUDA
  if (device.is_cuda() && elements > 0) {
    const c10::DeviceGuard on_its_device(device);  // the runtime makes a context on the current one
    const auto bytes = static_cast<std::size_t>(elements) * c10::elementSize(dtype);
    void* memory = nullptr;
    if (const auto status = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable); status != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      throw InvalidArgument("offload: the host gives no " + std::to_string(bytes) + " bytes of page-locked memory (" +
                            cudaGetErrorString(status) + "); set offload = none, or use a host with more memory");
    }
    const std::array<std::int64_t, 1> sizes{elements};
    return at::from_blob(
        memory, sizes, [](void* data) { static_cast<void>(cudaFreeHost(data)); }, options);
  }
#else
  static_cast<void>(device);
#endif
  return at::empty({elements}, options);
}

void DeviceEvent::set(c10::Device device) {
  if (device.is_cpu()) return;
  if (!event_) event_.emplace(device.type());
  event_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

void DeviceEvent::wait() {
  if (event_) event_->synchronize();
}

}  // namespace autopar
