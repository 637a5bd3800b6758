#include "reduce.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include <autopar/core/assert.hpp>

namespace autopar::detail {
namespace {

/// IEEE binary16.
struct Half {
  std::uint16_t bits;
  using Sum = float;

  static float load(Half value) {
    const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
    const std::uint32_t exponent = (value.bits >> 10) & 0x1fu;
    const std::uint32_t fraction = value.bits & 0x3ffu;
    if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
    if (exponent == 0) {
      const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
      return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
    }
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  }

  static Half store(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>((word >> 16) & 0x8000u);
    const std::uint32_t magnitude = word & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u)};
    if (magnitude >= 0x477ff000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};
    if (magnitude < 0x38800000u) {
      // Subnormal: adding 0.5 leaves exactly the bits of binary16 in the fraction, rounded to nearest even.
      const auto shifted = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f);
      return {static_cast<std::uint16_t>(sign | (shifted - 0x3f000000u))};
    }
    const std::uint32_t odd = (magnitude >> 13) & 1u;
    return {static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13))};
  }
};

/// The upper half of binary32.
struct Bfloat {
  std::uint16_t bits;
  using Sum = float;

  static float load(Bfloat value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }
  static Bfloat store(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    if ((word & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((word >> 16) | 0x40u)};
    return {static_cast<std::uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16)};
  }
};

template <class T>
struct Plain {
  T number;
  using Sum = T;
  static T load(Plain value) { return value.number; }
  static Plain store(T value) { return {value}; }
};

template <class Element>
void add_elements(std::byte* out, std::span<const std::byte* const> addends, std::size_t elements) {
  constexpr std::size_t kBlock = 512;
  std::array<typename Element::Sum, kBlock> sums;
  std::array<Element, kBlock> block;
  for (std::size_t begin = 0; begin < elements; begin += kBlock) {
    const std::size_t count = std::min(kBlock, elements - begin);
    const std::size_t offset = begin * sizeof(Element);
    const std::size_t bytes = count * sizeof(Element);
    std::memcpy(block.data(), addends[0] + offset, bytes);
    for (std::size_t i = 0; i < count; ++i) sums[i] = Element::load(block[i]);
    for (std::size_t addend = 1; addend < addends.size(); ++addend) {
      std::memcpy(block.data(), addends[addend] + offset, bytes);
      for (std::size_t i = 0; i < count; ++i) sums[i] += Element::load(block[i]);
    }
    for (std::size_t i = 0; i < count; ++i) block[i] = Element::store(sums[i]);
    std::memcpy(out + offset, block.data(), bytes);
  }
}

}  // namespace

bool can_reduce(DType dtype) { return is_floating(dtype) || dtype == DType::kI64 || dtype == DType::kI32; }

void add_in_order(std::byte* out, std::span<const std::byte* const> addends, std::size_t elements, DType dtype) {
  AUTOPAR_ASSERT(!addends.empty(), "a sum needs an addend");
  switch (dtype) {
    case DType::kF32:
      return add_elements<Plain<float>>(out, addends, elements);
    case DType::kF64:
      return add_elements<Plain<double>>(out, addends, elements);
    case DType::kF16:
      return add_elements<Half>(out, addends, elements);
    case DType::kBF16:
      return add_elements<Bfloat>(out, addends, elements);
    // Unsigned: overflow wraps as in libtorch instead of being undefined.
    case DType::kI64:
      return add_elements<Plain<std::uint64_t>>(out, addends, elements);
    case DType::kI32:
      return add_elements<Plain<std::uint32_t>>(out, addends, elements);
    default:
      AUTOPAR_ASSERT(false, "this element type cannot be summed");
  }
}

}  // namespace autopar::detail
