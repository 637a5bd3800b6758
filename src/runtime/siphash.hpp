#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace autopar::detail {

using SipKey = std::array<std::byte, 16>;

/// SipHash-2-4 (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012): a message authentication code for
/// short messages. Who does not know the key cannot tell it from random numbers.
[[nodiscard]] constexpr std::uint64_t siphash(const SipKey& key, std::span<const std::byte> message) {
  const auto word = [](std::span<const std::byte> bytes) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
    return value;
  };
  const std::uint64_t k0 = word(std::span(key).first<8>());
  const std::uint64_t k1 = word(std::span(key).last<8>());
  std::array<std::uint64_t, 4> v{k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d, k0 ^ 0x6c7967656e657261,
                                 k1 ^ 0x7465646279746573};
  const auto rounds = [&](int count) {
    for (; count > 0; --count) {
      v[0] += v[1], v[2] += v[3];
      v[1] = std::rotl(v[1], 13) ^ v[0], v[3] = std::rotl(v[3], 16) ^ v[2];
      v[0] = std::rotl(v[0], 32);
      v[2] += v[1], v[0] += v[3];
      v[1] = std::rotl(v[1], 17) ^ v[2], v[3] = std::rotl(v[3], 21) ^ v[0];
      v[2] = std::rotl(v[2], 32);
    }
  };
  for (std::size_t at = 0; at <= message.size(); at += 8) {
    const auto part = message.subspan(at, std::min<std::size_t>(8, message.size() - at));
    std::uint64_t block = word(part);
    if (part.size() < 8) block |= static_cast<std::uint64_t>(message.size()) << 56;
    v[3] ^= block;
    rounds(2);
    v[0] ^= block;
  }
  v[2] ^= 0xff;
  rounds(4);
  return v[0] ^ v[1] ^ v[2] ^ v[3];
}

}  // namespace autopar::detail
