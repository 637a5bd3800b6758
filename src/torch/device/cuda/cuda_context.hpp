#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "torch/device/device_context.hpp"

namespace autopar::devices {

/// CUDA devices with libtorch's operators and CUDA graphs; `with_kernels/` adds the library's own kernels.
class CudaContext : public DeviceContext {
 public:
  [[nodiscard]] int count() const override;
  [[nodiscard]] Device describe(c10::DeviceIndex index, int ranks_here) const override;
  [[nodiscard]] Link link_within_host() const override;
  [[nodiscard]] void* current_stream(c10::DeviceIndex index) const override;
  [[nodiscard]] at::Tensor host_memory(std::int64_t elements, c10::ScalarType dtype,
                                       c10::DeviceIndex index) const override;
  void multiply_unless_one(const std::vector<at::Tensor>& tensors, const at::Tensor& factor) const override;
  [[nodiscard]] std::unique_ptr<DeviceRecording> record(c10::Stream stream, const std::function<void()>& work,
                                                        const DeviceRecording* beside) const override;
  [[nodiscard]] at::Generator recorded_generator(const at::Tensor& seed) const override;
};

}  // namespace autopar::devices
