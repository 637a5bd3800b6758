#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include <autopar/core/units.hpp>

namespace autopar::ir {

/// An operator of a captured program that the ranks of a stage run together. In one process it copies its operand. A
/// stage on several ranks is cut before the operator, and the operand is transferred between the two parts.
///
/// To add one: a row in `kCollectives`, and its definition (ops/exchanges.cpp).
struct Collective {
  std::string_view name;        ///< in the graph
  std::string_view adjoint;     ///< collective of its backward, over the same ranks
  double all_reduces;           ///< duration in units of an all-reduce of as many bytes
  std::string_view stands_for;  ///< operator in the user's code, for messages

  /// Bytes of an all-reduce that takes as long as this on an operand of `operand` bytes.
  [[nodiscard]] constexpr Bytes all_reduced(Bytes operand) const {
    return Bytes(static_cast<std::int64_t>(all_reduces * static_cast<double>(operand.value())));
  }
};

inline constexpr std::array kCollectives{
    Collective{"autopar::all_reduce", "autopar::all_reduce", 1, "aten::batch_norm"},
};

/// Nullptr for other operators.
[[nodiscard]] constexpr const Collective* collective_named(std::string_view name) {
  const auto found =
      std::find_if(kCollectives.begin(), kCollectives.end(), [&](const Collective& row) { return row.name == name; });
  return found == kCollectives.end() ? nullptr : &*found;
}

}  // namespace autopar::ir
