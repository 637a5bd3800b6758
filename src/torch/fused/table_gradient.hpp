#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace autopar::fused {

/// Whether the embedding backward below supports the arguments: vectorised rows (whole packs of 16 bytes) on a device
/// that compiles kernels.
/// @param rows  [..., columns], the gradient of the looked-up rows
[[nodiscard]] bool has_table_kernels(const at::Tensor& rows, const at::Tensor& indices, std::int64_t entries);

/// at::embedding_dense_backward(rows, indices, entries, padding, false) in single precision, from rows of any type. It
/// sums in the order of the rows, 64 at a time. libtorch's makes three passes over the data that it sums, and returns
/// the type of the rows.
/// @pre has_table_kernels
[[nodiscard]] at::Tensor table_gradient(const at::Tensor& rows, const at::Tensor& indices, std::int64_t entries,
                                        std::int64_t padding);

}  // namespace autopar::fused
