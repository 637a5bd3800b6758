#pragma once

#include <chrono>

namespace autopar {

/// Now, by the system's clock: for files that other processes read. It may be set back.
[[nodiscard]] inline double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace autopar
