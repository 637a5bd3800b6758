#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>

namespace autopar::fused {

/// at::gelu_backward(gradient, x, approximate). On a GPU the library's kernel runs for contiguous matrices [...,
/// columns] in 16 bits or single precision. It has a bias-gradient epilogue: see fused/bias_gradient.hpp.
/// @param approximate  "none" or "tanh"
[[nodiscard]] at::Tensor gelu_gradient(const at::Tensor& gradient, const at::Tensor& x, std::string_view approximate);

}  // namespace autopar::fused
