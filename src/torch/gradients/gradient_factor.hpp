#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace autopar::gradients {

/// Multiplies gradients in place by the gradient of the loss, which is 1 unless the user scaled the loss. On a GPU the
/// host does not know the value, and reading it would wait for the whole step. There, one kernel launch for up to 200
/// gradients reads it and returns at once if it is 1. The first call on a device compiles the kernel.
///
/// Other gradients are multiplied even by 1: types other than the four real floating point ones, tensors with gaps or
/// overlaps, and devices without NVRTC. Thread-safe.
/// @param factor  one element, on the device of all gradients
void multiply_unless_one(const std::vector<at::Tensor>& gradients, const at::Tensor& factor);

/// A gradient times one element of any device and type.
[[nodiscard]] inline at::Tensor multiplied(const at::Tensor& gradient, const at::Tensor& factor) {
  return gradient.mul(factor.reshape({}).to(gradient.options()));
}

/// Divides gradients of one device in place, and waits for the result.
/// @return whether all elements are finite
[[nodiscard]] bool divide_and_check(const std::vector<at::Tensor>& gradients, double divisor, c10::Device device);

}  // namespace autopar::gradients
