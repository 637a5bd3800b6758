#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace autopar::fused {

/// rows.sum(0, false, type) of a matrix, such as the gradient of a linear layer's bias. On a GPU, where columns lie
/// together in whole packs of 16 bytes, with kernels of the library's own: added in single precision, in an order that
/// depends on the sizes alone.
[[nodiscard]] at::Tensor column_sums(const at::Tensor& rows, c10::ScalarType type);

/// Whether the device compiles those kernels.
[[nodiscard]] bool has_column_sums(c10::Device device);

/// sum.add_(column_sums(rows, type)), on a GPU where it is made if `sum` is of that type.
void add_column_sums(const at::Tensor& rows, c10::ScalarType type, const at::Tensor& sum);

/// How kernels that sum columns on the way cover a matrix of packs: blocks of 32 packs side by side, and `rows` below
/// one another.
struct BlocksOfRows {
  std::int64_t across, down;  ///< blocks
  std::int64_t rows;          ///< of a block
};

/// @param at_a_time  rows; those of a block are a multiple
/// @param most       blocks, about
[[nodiscard]] BlocksOfRows blocks_of_rows(std::int64_t rows, std::int64_t packs, std::int64_t at_a_time,
                                          std::int64_t most);

/// Adds up what such blocks have summed, `partial` [blocks, columns] in single precision.
/// @param adds  to what is there
/// @pre has_column_sums
void add_up_columns(const at::Tensor& partial, const at::Tensor& sum, bool adds = false);

}  // namespace autopar::fused
