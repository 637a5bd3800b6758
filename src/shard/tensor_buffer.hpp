#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <autopar/core/dtype.hpp>
#include <autopar/runtime/transport.hpp>

namespace autopar {

/// The memory of a tensor without gaps, for a transport; its owner is the tensor.
[[nodiscard]] Buffer buffer_of(at::Tensor tensor);

/// What a transport adds up where tensors of this type are summed: of complex numbers their parts.
/// @throws InvalidArgument if it is neither floating, complex nor int64
[[nodiscard]] DType summed_dtype(c10::ScalarType type);

}  // namespace autopar
