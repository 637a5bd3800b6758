#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>

namespace autopar::fused {

/// at::gelu_backward(gradient, x, approximate). On a GPU, of matrices [..., columns] of 16 bits or in single precision
/// without gaps, with a kernel of the library's own that also sums the result's rows: see fused/summed_columns.hpp.
/// @param approximate  "none" or "tanh"
[[nodiscard]] at::Tensor gelu_gradient(const at::Tensor& gradient, const at::Tensor& x, std::string_view approximate);

}  // namespace autopar::fused
