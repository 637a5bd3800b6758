#pragma once

#include <mutex>

namespace autopar::detail {

/// Who saves, moves and restores torch's default CPU generator holds this. The generator is one for all threads, and
/// several of them (ranks of one process) must draw as if each were alone.
[[nodiscard]] std::recursive_mutex& generator_use();

}  // namespace autopar::detail
