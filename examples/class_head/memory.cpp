#include "memory.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <c10/core/CachingDeviceAllocator.h>

namespace {

/// A line of /proc/self/status, in bytes; 0 where there is none.
int64_t status_of_process(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kib = 0;
    if (word == key + ":" && status >> kib) return kib << 10;
    status.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

c10::DeviceAllocator* allocator_of(torch::Device device) {
  return device.is_cpu() ? nullptr : c10::getDeviceAllocator(device.type());
}

constexpr std::size_t kAll = 0;  // of the allocator's statistics: pools small and large together

}  // namespace

PeakMemory::PeakMemory(torch::Device device) : device_(device) {
  if (auto* allocator = allocator_of(device)) {
    static_cast<void>(torch::empty({1}, device));  // before a device's first tensor there are no statistics
    allocator->resetPeakStats(device.index());
    before_ = allocator->getDeviceStats(device.index()).allocated_bytes[kAll].current;
    return;
  }
#ifdef __GLIBC__
  malloc_trim(0);  // else what was freed before still counts as held, and is used again unseen
#endif
  std::ofstream("/proc/self/clear_refs") << "5";  // the high-water mark begins anew
  before_ = status_of_process("VmRSS");
}

int64_t PeakMemory::bytes() const {
  if (auto* allocator = allocator_of(device_))
    return allocator->getDeviceStats(device_.index()).allocated_bytes[kAll].peak - before_;
  return std::max<int64_t>(status_of_process("VmHWM") - before_, 0);
}
