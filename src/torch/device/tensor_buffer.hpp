#pragma once

#include <ATen/core/Tensor.h>

#include <autopar/runtime/transport.hpp>

namespace autopar {

/// The memory of a tensor without gaps, for a transport; its owner is the tensor.
[[nodiscard]] Buffer buffer_of(at::Tensor tensor);

}  // namespace autopar
