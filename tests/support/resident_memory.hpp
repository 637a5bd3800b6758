#pragma once

#include <cstdint>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

#ifdef __GLIBC__
#include <malloc.h>
#endif

/// Memory of this process as the kernel counts it.
namespace resident_memory {

/// A sanitizer of addresses keeps freed blocks, and a record of every place that made one.
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kIsOnlyTheProgram = false;
#else
inline constexpr bool kIsOnlyTheProgram = true;
#endif

/// A line of /proc/self/status, in bytes.
inline std::int64_t status(const std::string& key) {
  std::ifstream lines("/proc/self/status");
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(key + ":")) continue;
    std::int64_t kibibytes = 0;
    std::istringstream(line.substr(key.size() + 1)) >> kibibytes;
    return kibibytes * 1024;
  }
  throw std::runtime_error("/proc/self/status has no " + key);
}

inline std::int64_t now() { return status("VmRSS"); }
inline std::int64_t peak() { return status("VmHWM"); }

/// The largest resident size from now on is `peak`. What was freed goes back to the kernel before.
inline void forget_peak() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
  std::ofstream("/proc/self/clear_refs") << 5;
}

}  // namespace resident_memory
