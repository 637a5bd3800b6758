#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace autopar::fused {

/// rows.sum(0, false, type) of a matrix, such as the gradient of a linear layer's bias. On a GPU the library's kernels
/// run if rows are vectorised: contiguous columns in whole packs of 16 bytes. They add in single precision, in an order
/// that depends on the sizes alone.
[[nodiscard]] at::Tensor column_sums(const at::Tensor& rows, c10::ScalarType type);

/// Whether the device compiles these kernels.
[[nodiscard]] bool has_column_sums(c10::Device device);

/// sum.add_(column_sums(rows, type)). On a GPU the kernels accumulate into `sum` directly if it has that type.
void add_column_sums(const at::Tensor& rows, c10::ScalarType type, const at::Tensor& sum);

/// How kernels with a bias-gradient epilogue cover a matrix of packs. Blocks of 32 packs lie side by side, and blocks
/// of `rows` rows below one another.
struct BlocksOfRows {
  std::int64_t across, down;  ///< numbers of blocks
  std::int64_t rows;          ///< rows of a block
};

/// @param at_a_time  rows that a block processes at a time; `rows` is a multiple of it
/// @param most       the approximate number of blocks
[[nodiscard]] BlocksOfRows blocks_of_rows(std::int64_t rows, std::int64_t packs, std::int64_t at_a_time,
                                          std::int64_t most);

/// Adds up the partial sums of these blocks: `partial` [blocks, columns] in single precision.
/// @param adds  adds to the contents of `sum`
/// @pre has_column_sums
void add_up_columns(const at::Tensor& partial, const at::Tensor& sum, bool adds = false);

}  // namespace autopar::fused
