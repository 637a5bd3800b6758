#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include <time.h>

#include <ATen/Parallel.h>
#include <c10/core/Device.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace autopar::cost::detail {

/// About the largest capacity of a CPU's caches.
inline constexpr std::int64_t kCacheBytes = 32 << 20;

/// Waits until the device has finished all queued work.
inline void synchronise(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

/// Seconds that `work` takes on the device.
template <class Work>
[[nodiscard]] double seconds_of(c10::Device device, Work&& work) {
  synchronise(device);
  const auto start = std::chrono::steady_clock::now();
  work();
  synchronise(device);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Seconds that `work`, which does not wait, takes on the device. On a CPU with one thread this is the thread's CPU
/// time, which excludes other programs' use of the processor.
template <class Work>
[[nodiscard]] double busy_seconds_of(c10::Device device, Work&& work) {
  if (!device.is_cpu() || at::get_num_threads() > 1) return seconds_of(device, work);
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double start = now();
  work();
  return now() - start;
}

/// The median; for an even number of values the lower middle one.
/// @pre not empty
[[nodiscard]] inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace autopar::cost::detail
