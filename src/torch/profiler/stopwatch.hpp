#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace autopar::detail {

/// Waits until the device has done what it was given.
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

/// The middle one; of an even number the lower. @pre not empty
[[nodiscard]] inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace autopar::detail
