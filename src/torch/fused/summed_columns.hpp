#pragma once

#include <ATen/core/Tensor.h>

namespace autopar::fused {

/// Sums over the rows of a gradient [..., columns], in single precision, that the kernel which wrote it made on the
/// way. They hang on the gradient's tensor, where the linear layer that gets it finds them as the gradient of its bias:
///
///   attach_summed_columns(gradient, sums);   // of the numbers as they are stored, rounded
///   take_summed_columns(gradient);           // sums; undefined from now on
///
/// Other tensors do not have them: not a sum of two gradients, no view, no copy, not what `detach` returns. Writing to
/// the memory ends them, too, also where autograd adds a second gradient to a first that nobody else holds: it counts a
/// version. Who writes through a pointer, or below autograd's keys, counts one himself (`bump_version`).
void attach_summed_columns(const at::Tensor& gradient, const at::Tensor& sums);

/// Takes them off the gradient: who has them may keep them as a gradient of its own. Undefined if there are none, or
/// the gradient has been written to since.
[[nodiscard]] at::Tensor take_summed_columns(const at::Tensor& gradient);

}  // namespace autopar::fused
