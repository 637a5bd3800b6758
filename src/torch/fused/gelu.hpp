#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>

namespace autopar::fused {

/// at::gelu(x, approximate), to the bit. On a GPU the library's kernel runs for contiguous data in whole packs, in 16
/// bits or single precision.
/// @pre autograd records nothing: gradients are off, x needs none, or autograd's keys are excluded
/// @param approximate  "none" or "tanh"
[[nodiscard]] at::Tensor gelu_of(const at::Tensor& x, std::string_view approximate);

}  // namespace autopar::fused
