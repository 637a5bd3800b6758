#pragma once

namespace autopar::fused {

/// Whether a result is added to what its destination holds, or written over it.
enum class Destination { kAdds, kIsWritten };

}  // namespace autopar::fused
