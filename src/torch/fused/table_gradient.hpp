#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace autopar::fused {

/// Whether `table_gradient` takes them: on a device that compiles kernels, columns in whole packs of 16 bytes.
/// @param rows  [..., columns], the gradient of what was looked up
[[nodiscard]] bool has_table_kernels(const at::Tensor& rows, const at::Tensor& indices, std::int64_t entries);

/// at::embedding_dense_backward(rows, indices, entries, padding, false) in single precision, from rows of any type:
/// sums in the order of the rows, of 64 at a time. libtorch's passes three times over what it sums, and has it in the
/// type of the rows.
/// @pre has_table_kernels
[[nodiscard]] at::Tensor table_gradient(const at::Tensor& rows, const at::Tensor& indices, std::int64_t entries,
                                        std::int64_t padding);

}  // namespace autopar::fused
