#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/accumulate.h>

namespace autopar::fused {

/// A tensor as a matrix: its last dim, and all other dims as rows. Dims may have no elements, where reshape({-1,
/// width}) fails. A view where reshape gives one. @pre it has a dim
[[nodiscard]] inline at::Tensor rows_of(const at::Tensor& tensor) {
  const auto width = tensor.sizes().back();
  return tensor.reshape({c10::multiply_integers(tensor.sizes().slice(0, tensor.sizes().size() - 1)), width});
}

}  // namespace autopar::fused
