#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include <sys/resource.h>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Device.h>

namespace train {

using Clock = std::chrono::steady_clock;

inline double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

inline double median(std::vector<double> samples) {
  if (samples.empty()) return 0;
  std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2), samples.end());
  return samples[samples.size() / 2];
}

/// Seconds of all threads of this process, in the kernel too.
inline double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

inline void wait_for(c10::Device device) {
  if (device.is_cuda()) at::accelerator::synchronizeDevice(device.index());
}

/// The most memory since `reset`: of a CUDA device what libtorch's allocator gave out, else what the process had
/// resident.
struct PeakMemory {
  c10::Device device;

  void reset() const {
    if (device.is_cuda())
      at::accelerator::resetPeakStats(device.index());
    else
      std::ofstream("/proc/self/clear_refs") << "5";
  }
  [[nodiscard]] double gib() const {
    constexpr double kGib = 1 << 30;
    if (device.is_cuda())
      return static_cast<double>(at::accelerator::getDeviceStats(device.index()).allocated_bytes[0].peak) / kGib;
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;) {
      std::int64_t kibibytes = 0;
      if (word == "VmHWM:" && status >> kibibytes) return static_cast<double>(kibibytes << 10) / kGib;
    }
    return 0;
  }
};

}  // namespace train
