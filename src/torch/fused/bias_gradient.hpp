#pragma once

#include <ATen/core/Tensor.h>

namespace autopar::fused {

/// Attaches the result of a bias-gradient epilogue to a gradient [..., columns]: sums over its rows, in single
/// precision. The kernel that wrote the gradient computed them. The linear layer that receives the gradient finds them
/// as its bias gradient:
///
///   attach_bias_gradient(gradient, sums);   // of the numbers as they are stored, rounded
///   take_bias_gradient(gradient);           // sums; undefined from now on
///
/// Other tensors do not have them: no sum of two gradients, no view, no copy, no result of `detach`. Writing to the
/// memory also invalidates them, because writing increments the tensor's version. Autograd does so too when it adds a
/// second gradient to a first that nobody else holds. Code that writes through a pointer or below autograd's keys must
/// increment the version itself (`bump_version`).
void attach_bias_gradient(const at::Tensor& gradient, const at::Tensor& sums);

/// Detaches the sums from the gradient; the caller owns them and may keep them as a gradient. Undefined if there are
/// none, or if the gradient has been written since.
[[nodiscard]] at::Tensor take_bias_gradient(const at::Tensor& gradient);

}  // namespace autopar::fused
