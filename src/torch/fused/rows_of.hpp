#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/accumulate.h>

namespace autopar::fused {

/// A tensor as a matrix: its last dim, and all its other dims as rows. Any of them may be without elements, of which
/// reshape({-1, width}) makes nothing. A view where reshape gives one. @pre it has a dim
[[nodiscard]] inline at::Tensor rows_of(const at::Tensor& tensor) {
  const auto width = tensor.sizes().back();
  return tensor.reshape({c10::multiply_integers(tensor.sizes().slice(0, tensor.sizes().size() - 1)), width});
}

}  // namespace autopar::fused
