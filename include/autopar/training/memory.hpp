#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Device.h>

namespace autopar::training {

/// The most bytes held since the program began, or since `reset_peak_memory`: of a CUDA device what libtorch's
/// allocator gave out, else what the process had resident (VmHWM; 0 where the system does not say).
inline std::int64_t peak_memory(c10::Device device) {
  if (device.is_cuda()) return at::accelerator::getDeviceStats(device.index()).allocated_bytes[0].peak;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::int64_t kibibytes = 0;
    if (word == "VmHWM:" && status >> kibibytes) return kibibytes << 10;
  }
  return 0;
}

inline void reset_peak_memory(c10::Device device) {
  if (device.is_cuda())
    at::accelerator::resetPeakStats(device.index());
  else
    std::ofstream("/proc/self/clear_refs") << "5";
}

}  // namespace autopar::training
