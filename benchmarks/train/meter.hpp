#pragma once

#include <algorithm>
#include <chrono>
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

}  // namespace train
