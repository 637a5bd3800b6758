#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include <autopar/core/units.hpp>

namespace autopar {

/// Element type of a tensor, as far as costs, reductions and files use it.
enum class DType : std::uint8_t { kBool, kU8, kI8, kI16, kI32, kI64, kF16, kBF16, kF32, kF64, kC64, kC128 };

namespace detail {
struct DTypeInfo {
  DType dtype;
  std::string_view name;
  int bytes;
};
inline constexpr std::array<DTypeInfo, 12> kDTypes{{{DType::kBool, "bool", 1},
                                                    {DType::kU8, "u8", 1},
                                                    {DType::kI8, "i8", 1},
                                                    {DType::kI16, "i16", 2},
                                                    {DType::kI32, "i32", 4},
                                                    {DType::kI64, "i64", 8},
                                                    {DType::kF16, "f16", 2},
                                                    {DType::kBF16, "bf16", 2},
                                                    {DType::kF32, "f32", 4},
                                                    {DType::kF64, "f64", 8},
                                                    {DType::kC64, "c64", 8},
                                                    {DType::kC128, "c128", 16}}};
}  // namespace detail

[[nodiscard]] constexpr Bytes size_of(DType dtype) {
  return Bytes(detail::kDTypes[static_cast<std::size_t>(dtype)].bytes);
}
[[nodiscard]] constexpr std::string_view name_of(DType dtype) {
  return detail::kDTypes[static_cast<std::size_t>(dtype)].name;
}
[[nodiscard]] constexpr std::optional<DType> dtype_named(std::string_view name) {
  for (const auto& info : detail::kDTypes) {
    if (info.name == name) return info.dtype;
  }
  return std::nullopt;
}
[[nodiscard]] constexpr bool is_floating(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32 || dtype == DType::kF64;
}

}  // namespace autopar
