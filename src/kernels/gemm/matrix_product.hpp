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
  at::Tensor a, b;    ///< [m, k] and [k, n] of one 16-bit type
  at::Tensor bias;    ///< [n] of that type, added to each row; undefined: none
  at::Tensor to;      ///< [m, n] of that type, or in single precision, where there is no bias
  bool adds = false;  ///< to what is there
};

/// Two products of one form may be made by one algorithm.
struct ProductForm {
  std::int64_t rows = 0, inner = 0, columns = 0;     ///< m, k, n
  std::int64_t pitch_a = 0, pitch_b = 0, pitch = 0;  ///< elements between rows or columns of a, b, and rows of `to`
  bool a_by_columns = false, b_by_columns = false;   ///< elements of a column lie together, not those of a row
  bool has_bias = false;
  c10::ScalarType type = c10::kHalf, type_to = c10::kHalf;
  std::int64_t alignment = 0;  ///< bytes, of all addresses

  friend auto operator<=>(const ProductForm&, const ProductForm&) = default;
};

/// Nothing for other types and layouts: elements of rows or of columns lie together, in whole packs of 16 bytes. For
/// others cuBLASLt has kernels that read element by element, where libtorch's products have better ones.
[[nodiscard]] std::optional<ProductForm> form_of_product(const MatrixProduct& product);

/// What came of an algorithm that was tried.
struct AlgorithmTrial {
  bool has_same_bits = false;  ///< as the first one
  float milliseconds = 0;
  bool has_large_tiles = false;  ///< of 128 x 256 elements: factors are read least often
};

/// The fastest of those that make the bits of the first, so no result hangs on a measurement. One without large tiles
/// has to be faster than any with them by 6 %: a trial is short, and in a training at the limit of its power the device
/// takes up to a fifth longer for it. The first, if it is within a hundredth of what would be chosen and no smaller of
/// tiles. @pre there is a first
[[nodiscard]] std::size_t fastest_alike(const std::vector<AlgorithmTrial>& trials);

}  // namespace autopar::kernels
