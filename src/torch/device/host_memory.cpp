#include "torch/device/host_memory.hpp"

#include <cstdint>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace autopar::devices {

namespace {

/// If another allocator is in use (preloaded, or a sanitizer's), glibc's is first used here. Threads of several ranks
/// may do so at once, which its initialisation does not allow.
[[nodiscard, maybe_unused]] std::unique_lock<std::mutex> only_user_of_heap() {
  static std::mutex mutex;
  return std::unique_lock(mutex);
}

}  // namespace

void keep_freed_memory() {
#ifdef __GLIBC__
  const auto only = only_user_of_heap();
  constexpr int kLargestOfHeap = 32 << 20;  // glibc's upper limit
  constexpr int kNever = -1;
  mallopt(M_MMAP_THRESHOLD, kLargestOfHeap);
  mallopt(M_TRIM_THRESHOLD, kNever);
#endif
}

void release_freed_memory() {
#ifdef __GLIBC__
  const auto only = only_user_of_heap();
  malloc_trim(0);
#endif
}

std::optional<Bytes> available_host_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string name, unit, line; std::getline(file, line);) {
    std::istringstream words(line);
    std::int64_t kibibytes = 0;
    if (words >> name >> kibibytes && name == "MemAvailable:") return Bytes(kibibytes << 10);
  }
  return std::nullopt;
}

}  // namespace autopar::devices
