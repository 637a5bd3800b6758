#include "torch/device/host_memory.hpp"

#include <mutex>

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

}  // namespace autopar::devices
