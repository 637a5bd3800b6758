#pragma once

#include <c10/core/ScalarType.h>

namespace autopar::autograd {

/// The element type in which numbers of `type` are summed: single precision for 16-bit types.
[[nodiscard]] constexpr c10::ScalarType sum_type(c10::ScalarType type) {
  return type == c10::ScalarType::Half || type == c10::ScalarType::BFloat16 ? c10::ScalarType::Float : type;
}

}  // namespace autopar::autograd
