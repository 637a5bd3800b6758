#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace autopar::fused {

// Products on a GPU that read or write 16-bit rows of 30,522 classes run on kernels of older GPUs, at a third of the
// speed: rows do not begin where packs of 16 bytes do. So logits have gaps behind their rows, and the copy that is kept
// of the weight has rows of zeros behind its last: the products are of whole packs.

/// Elements of 16 bits in a pack.
inline constexpr std::int64_t kElementsOfPack = 8;
[[nodiscard]] constexpr std::int64_t in_whole_packs(std::int64_t elements) {
  return (elements + kElementsOfPack - 1) / kElementsOfPack * kElementsOfPack;
}

/// Memory for a weight [outputs, inputs] of that type; behind the last row zeros until outputs are whole packs.
[[nodiscard]] at::Tensor empty_in_packs(const at::Tensor& like, c10::ScalarType type);

/// x [..., inputs], weight [outputs, inputs], bias [outputs] or undefined. @return [..., outputs] whose rows begin
/// `in_whole_packs(outputs)` elements apart
[[nodiscard]] at::Tensor linear_in_padded_rows(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// The gradient of x from that of the result, in any layout. Where that has the rows of `linear_in_padded_rows`, zeros
/// are in its gaps: the cross entropy's kernel leaves them there.
[[nodiscard]] at::Tensor gradient_through_padded_rows(const at::Tensor& gradient, const at::Tensor& x,
                                                      const at::Tensor& weight);

/// Columns between the rows of a matrix that are its own to write to: those of `linear_in_padded_rows`; else 0.
[[nodiscard]] std::int64_t padding_behind_rows(const at::Tensor& rows);

}  // namespace autopar::fused
