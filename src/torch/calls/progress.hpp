#pragma once

#include <cstdint>

namespace autopar::calls {

/// How far a training is. Checkpoints hold it.
struct Progress {
  std::uint64_t seed = 0;  ///< rank 0's, of random draws
  std::int64_t calls = 0;  ///< of forward, so far
};

}  // namespace autopar::calls
