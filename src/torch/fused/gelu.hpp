#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>

namespace autopar::fused {

/// at::gelu(x, approximate), to the bit. On a GPU, of whole packs without gaps of 16 bits or in single precision, by a
/// kernel of the library's own.
/// @pre no history is recorded: gradients are off, x has none, or autograd's keys are excluded
/// @param approximate  "none" or "tanh"
[[nodiscard]] at::Tensor gelu_of(const at::Tensor& x, std::string_view approximate);

}  // namespace autopar::fused
