#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace autopar {

/// 64-bit XXH3. A damaged text has the same checksum with probability 2^-64. No protection against forgery.
/// @source https://github.com/Cyan4973/xxHash
[[nodiscard]] std::uint64_t checksum(std::span<const std::byte> bytes);

}  // namespace autopar
