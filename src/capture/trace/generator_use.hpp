#pragma once

#include <mutex>

namespace autopar::trace {

/// Lock for code that saves, advances and restores torch's default CPU generator. All threads share that generator.
/// Several threads (ranks of one process) must draw as if each were alone.
[[nodiscard]] std::recursive_mutex& generator_use();

}  // namespace autopar::trace
