#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/ScalarType.h>

namespace autopar::devices {

/// Memory of the host that a device copies to and from while the host goes on: page-locked for CUDA devices. Flat, not
/// initialised, exactly of this size (libtorch's allocator of such memory takes the next power of two).
/// @throws InvalidArgument if the host has not so much
[[nodiscard]] at::Tensor host_memory(std::int64_t elements, c10::ScalarType dtype, c10::Device device);

/// A point in what was queued on a device's current stream, for which the host can wait. Nothing on CPUs, which queue
/// nothing.
class DeviceEvent {
 public:
  void set(c10::Device device);
  /// Returns when the device has done all that was queued before the mark was set, at once if it never was.
  void wait();

 private:
  std::optional<c10::Event> event_;
};

}  // namespace autopar::devices
