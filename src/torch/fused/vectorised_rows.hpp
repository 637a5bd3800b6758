#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace autopar::fused {

// A GPU product that reads or writes 16-bit rows of 30,522 classes runs on an older GPU's kernels, at a third of the
// speed. The reason is that rows are not aligned to packs of 16 bytes. So logits have padding after each row, and the
// kept copy of the weight has zero rows after its last. The products are then of vectorised rows, in whole packs.

/// 16-bit elements in a pack.
inline constexpr std::int64_t kElementsOfPack = 8;
[[nodiscard]] constexpr std::int64_t in_vectorised_rows(std::int64_t elements) {
  return (elements + kElementsOfPack - 1) / kElementsOfPack * kElementsOfPack;
}

/// Memory for a weight [outputs, inputs] of type `type`, followed by zero rows until outputs are whole packs.
[[nodiscard]] at::Tensor empty_in_packs(const at::Tensor& like, c10::ScalarType type);

/// x [..., inputs], weight [outputs, inputs], bias [outputs] or undefined. @return [..., outputs] whose rows begin
/// `in_vectorised_rows(outputs)` elements apart
[[nodiscard]] at::Tensor linear_in_padded_rows(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// The gradient of x from the result's gradient, in any layout. If the latter has the rows of `linear_in_padded_rows`,
/// its padding must be zero: the cross entropy's kernel writes zeros there.
[[nodiscard]] at::Tensor gradient_through_padded_rows(const at::Tensor& gradient, const at::Tensor& x,
                                                      const at::Tensor& weight);

/// Uninitialised memory in the layout of `value`, as empty_like gives it. If the value's rows are those of
/// `linear_in_padded_rows`, so are its rows, with zeros between them.
[[nodiscard]] at::Tensor empty_like_rows(const at::Tensor& value);

/// Columns of padding after each row that the matrix may write to, as `linear_in_padded_rows` makes them; otherwise 0.
[[nodiscard]] std::int64_t padding_behind_rows(const at::Tensor& rows);

}  // namespace autopar::fused
