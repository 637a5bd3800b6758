#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace autopar::devices {

/// Multiplies tensors by a factor on their device without reading it on the host. The library's kernels do not touch
/// memory if the factor is one. Without NVRTC, libtorch's operators are used.
void multiply_on_device(const std::vector<at::Tensor>& tensors, const at::Tensor& factor);

}  // namespace autopar::devices
