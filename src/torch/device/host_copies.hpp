#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/ScalarType.h>

namespace autopar::devices {

/// Host memory for asynchronous copies to and from a device: page-locked for CUDA devices. Flat, uninitialised, of
/// exactly this size (libtorch's allocator for such memory rounds up to a power of two).
/// @throws InvalidArgument if the host lacks the memory
[[nodiscard]] at::Tensor host_memory(std::int64_t elements, c10::ScalarType dtype, c10::Device device);

/// A point in a device's current stream that the host can wait for. Does nothing on CPUs, which have no queue.
class DeviceEvent {
 public:
  void set(c10::Device device);
  /// Waits until the device has done all work queued before the mark; returns at once if no mark was set.
  void wait();

 private:
  std::optional<c10::Event> event_;
};

}  // namespace autopar::devices
