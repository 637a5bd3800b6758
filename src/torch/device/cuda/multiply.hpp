#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace autopar::devices {

/// Multiplies tensors by a factor on their device that the host does not look at: kernels of the library's own,
/// compiled where NVRTC is there, which leave memory alone where the factor is one; libtorch's otherwise.
void multiply_on_device(const std::vector<at::Tensor>& tensors, const at::Tensor& factor);

}  // namespace autopar::devices
