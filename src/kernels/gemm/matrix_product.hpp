#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

namespace autopar::kernels {

/// to = a b + bias, summed in single precision.
struct MatrixProduct {
  at::Tensor a, b;    ///< [m, k] and [k, n] of one 16-bit type, or of 8-bit types
  at::Tensor bias;    ///< [n] of the 16-bit type, added to each row; undefined: none
  at::Tensor to;      ///< [m, n] of the 16-bit type, or in single precision if there is no bias
  bool adds = false;  ///< adds to the contents of `to`
  /// Of 8-bit types: what a one stands for, in single precision on the device
  at::Tensor unit_a{}, unit_b{};
};

/// Products of the same form may use the same algorithm.
struct ProductForm {
  std::int64_t rows = 0, inner = 0, columns = 0;     ///< m, k, n
  std::int64_t pitch_a = 0, pitch_b = 0, pitch = 0;  ///< elements between rows or columns of a, b, and rows of `to`
  bool a_by_columns = false, b_by_columns = false;   ///< columns are contiguous, not rows
  bool has_bias = false;
  c10::ScalarType type_a = c10::kHalf, type_b = c10::kHalf, type_to = c10::kHalf;
  std::int64_t alignment = 0;  ///< bytes, of all addresses
  std::int64_t left_free = 0;  ///< multiprocessors that other kernels may occupy

  friend auto operator<=>(const ProductForm&, const ProductForm&) = default;
};

/// The form of a product that leaves libtorch's SM carve-out free; none for other types and layouts. Rows or columns
/// are contiguous and consist of whole packs of 16 bytes. Of 8-bit types `a` lies by rows, `b` by columns. For other
/// layouts cuBLASLt's kernels read element by element, and libtorch's products are faster.
[[nodiscard]] std::optional<ProductForm> form_of_product(const MatrixProduct& product);

/// The result of one algorithm's trial.
struct AlgorithmTrial {
  bool has_same_bits = false;  ///< has the same bits as the first algorithm's result
  float milliseconds = 0;
  bool has_large_tiles = false;  ///< has tiles of 128 x 256 elements, which read the factors least often
};

/// The fastest algorithm with the same bits as the first, so that results do not depend on measurements.
///
/// An algorithm without large tiles must be 6 % faster than every one with them. Trials are short: in training at the
/// device's power limit, algorithms without large tiles take up to a fifth longer. The first is chosen if it is within
/// 1 % of the best and its tiles are not smaller. @pre there is a first
[[nodiscard]] std::size_t fastest_alike(const std::vector<AlgorithmTrial>& trials);

}  // namespace autopar::kernels
