#include "torch/session/host_memory.hpp"

#include <cstdlib>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace autopar {

void keep_freed_memory() {
#ifdef __GLIBC__
  constexpr int kLargestOfHeap = 32 << 20;  // glibc takes no more
  constexpr int kNever = -1;
  mallopt(M_MMAP_THRESHOLD, kLargestOfHeap);
  mallopt(M_TRIM_THRESHOLD, kNever);
#endif
}

void release_freed_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace autopar
