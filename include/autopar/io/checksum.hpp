#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace autopar {

/// XXH3 with 64 bits: of two texts that differ by damage it is the same once in 2^64 cases. No defence against forgery.
/// @source https://github.com/Cyan4973/xxHash
[[nodiscard]] std::uint64_t checksum(std::span<const std::byte> bytes);

}  // namespace autopar
