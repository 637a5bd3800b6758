#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace autopar {

/// rows.sum(0, false, type) of a matrix, such as the gradient of a linear layer's bias. On a GPU, where columns lie
/// together in whole packs of 16 bytes, with kernels of the library's own: added in single precision, in an order that
/// depends on the sizes alone.
[[nodiscard]] at::Tensor column_sums(const at::Tensor& rows, c10::ScalarType type);

/// Whether the device compiles those kernels.
[[nodiscard]] bool has_column_sums(c10::Device device);

/// sum.add_(column_sums(rows, type)), on a GPU where it is made if `sum` is of that type.
void add_column_sums(const at::Tensor& rows, c10::ScalarType type, const at::Tensor& sum);

}  // namespace autopar
