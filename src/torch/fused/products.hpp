#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "kernels/gemm/matrix_product.hpp"

namespace autopar::fused {

// Large products of 16-bit matrices on a GPU, by the fastest of cuBLASLt's algorithms: its own guess, which libtorch
// takes, is behind by some hundredths. Others, and all without cuBLASLt, by libtorch.

/// Whether it takes so long that its algorithm matters.
[[nodiscard]] bool is_large_product(const at::Tensor& a, const at::Tensor& b);

/// Queues to = a b + bias. @return false if it is not such a product; nothing is written then
[[nodiscard]] bool multiply_large(const kernels::MatrixProduct& product);

/// a b for matrices. @param type  of the result: their own, or on a GPU that of their sums
[[nodiscard]] at::Tensor matrix_product(const at::Tensor& a, const at::Tensor& b, c10::ScalarType type);

/// at::linear(x, weight, bias) without history, x [..., inputs]; undefined if it is not such a product.
[[nodiscard]] at::Tensor large_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace autopar::fused
