#include <autopar/io/checksum.hpp>

#define XXH_INLINE_ALL  // NOLINT(readability-identifier-naming): xxHash's own name
#include <xxhash.h>

namespace autopar {

std::uint64_t checksum(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace autopar
