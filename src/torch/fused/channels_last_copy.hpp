#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "kernels/channels_last_copy_source.hpp"

namespace autopar::fused {

/// to.copy_(from), where one is a contiguous weight of a convolution in single precision and the other channels-last in
/// 16 bits in a kernel that moves whole lines of both: libtorch's copies one of the two sides in pieces of an element.
void copy_between_layouts(const at::Tensor& to, const at::Tensor& from);

/// to.add_(from); in that kernel from channels-last to contiguous.
void add_between_layouts(const at::Tensor& to, const at::Tensor& from);

/// The two forms of a weight as the kernels take them: [outputs, inputs, places] and [outputs, places, inputs].
struct WeightForm {
  int outputs = 0, inputs = 0, places = 0;
};
/// Nothing if `single` is not in single precision and contiguous, or `half` not in 16 bits and channels-last, or of
/// sizes that kernels do not take.
[[nodiscard]] std::optional<WeightForm> weight_form_of(const at::Tensor& single, const at::Tensor& half);

}  // namespace autopar::fused
