#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "torch/fused/destination.hpp"

namespace autopar::fused {

// Products of matrices in 8 bits (Micikevicius et al., FP8 Formats for Deep Learning): E4M3 for values, E5M2 for
// gradients, sums in single precision. GPUs with such products use a kernel and cuBLASLt. Elsewhere libtorch's
// operators compute the same numbers.

/// How the numbers of a tensor are cast to 8 bits; each is one number in single precision on the tensor's device.
struct Fp8Scale {
  at::Tensor factor;  ///< a power of two by which they are multiplied
  at::Tensor unit;    ///< 1 / factor, at an address of whole packs of 16 bytes
  at::Tensor most;    ///< grows to the largest magnitude cast, infinite or NaN if a number is; undefined: not wanted
};

/// The time of a product in 8 bits, relative to bf16, on an H200 (benchmarks/NOTES.md).
inline constexpr double kTimeOfFp8Product = 0.58;
/// Bytes that a cast reads and writes for each number, by rows and by columns.
inline constexpr double kBytesOfFp8Cast = 4;

enum class Fp8Sides : std::uint8_t { kRows, kColumns, kBoth };

/// A matrix [m, n] in 8 bits.
struct Fp8Matrix {
  at::Tensor rows;     ///< [m, n]; undefined: not wanted
  at::Tensor columns;  ///< [n, m'], the transpose, m' = m rounded up to 16, zeros beyond m; undefined: not wanted
  at::Tensor unit;     ///< what a one stands for
};

/// @param matrix  [m, n], bf16, n a multiple of 16
/// @param format  kFloat8_e4m3fn or kFloat8_e5m2
/// @cost one pass over the matrix
[[nodiscard]] Fp8Matrix cast_to_fp8(const at::Tensor& matrix, c10::ScalarType format, const Fp8Scale& scale,
                                    Fp8Sides sides);

/// Writes the rows of a cast to E4M3. @param matrix  [m, n], rounded to bf16 before, n a multiple of 16
/// @param rows  of the matrix's sizes, without gaps
void put_fp8_rows(const at::Tensor& matrix, const Fp8Scale& scale, const at::Tensor& rows);

/// The transpose of a matrix [m, n] in 8 bits, as Fp8Matrix::columns. @cost one pass over the matrix
[[nodiscard]] at::Tensor fp8_columns(const at::Tensor& rows);

/// As cast_to_fp8, but only lets `most` grow. @param values  of any sizes
void see_largest(const at::Tensor& values, const at::Tensor& most);

/// One factor of a product: rows in 8 bits.
struct Fp8Rows {
  at::Tensor rows;  ///< [m, k], k a multiple of 16
  at::Tensor unit;
};

/// a b^T + bias. @param a [m, k] @param b [n, k] @param bias  [n] in bf16; undefined: none
/// @param type  of the result [m, n]: bf16, or single precision without bias
[[nodiscard]] at::Tensor fp8_product(const Fp8Rows& a, const Fp8Rows& b, const at::Tensor& bias, c10::ScalarType type);
/// Adds a b^T to `sum`, [m, n] in single precision, or writes it there.
void put_fp8_product(const Fp8Rows& a, const Fp8Rows& b, const at::Tensor& sum, Destination destination);

}  // namespace autopar::fused
