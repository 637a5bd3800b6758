#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "kernels/channels_last_copy_source.hpp"

namespace autopar::fused {

/// to.copy_(from). A kernel that moves whole lines of both sides handles the weights of convolutions. One tensor must
/// be contiguous in single precision, the other channels-last in 16 bits. libtorch's copy moves one of the two sides
/// element by element.
void copy_between_layouts(const at::Tensor& to, const at::Tensor& from);

/// to.add_(from); in the same kernel from channels-last to contiguous.
void add_between_layouts(const at::Tensor& to, const at::Tensor& from);

/// The two forms of a weight as the kernels take them: [outputs, inputs, places] and [outputs, places, inputs].
struct WeightForm {
  int outputs = 0, inputs = 0, places = 0;
};
/// None if `single` is not contiguous in single precision, or `half` is not channels-last in 16 bits. Also none for
/// sizes that kernels do not support.
[[nodiscard]] std::optional<WeightForm> weight_form_of(const at::Tensor& single, const at::Tensor& half);

}  // namespace autopar::fused
