#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace autopar::gradients {

/// Multiplies gradients in place by the gradient that a loss itself was given, which is 1 unless the user scaled the
/// loss. On a GPU the host does not know it, and asking would wait for the whole step: there one kernel launch for up
/// to 240 gradients looks at the number and leaves at once where it is 1. Its first call on a device compiles the
/// kernel.
///
/// Gradients of other types than the four real floating point ones, with gaps or overlaps, or on devices for which the
/// kernel cannot be compiled (no NVRTC), are multiplied by 1 as well. From several threads at once: fine.
/// @param factor  one element, on the device of all gradients
void multiply_unless_one(const std::vector<at::Tensor>& gradients, const at::Tensor& factor);

/// Divides gradients of one device in place. Waits for them.
/// @return whether all their elements are finite
[[nodiscard]] bool divide_and_check(const std::vector<at::Tensor>& gradients, double divisor, c10::Device device);

}  // namespace autopar::gradients
