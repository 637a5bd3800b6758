#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "kernels/gemm/matrix_product.hpp"

namespace autopar::fused {

// Large products of 16-bit matrices on a GPU use the fastest of cuBLASLt's algorithms. libtorch takes cuBLASLt's
// heuristic choice, which is a few hundredths slower. Other products, and all products without cuBLASLt, run in
// libtorch.

/// Whether a product takes so long that its algorithm matters.
[[nodiscard]] bool is_large_product(const at::Tensor& a, const at::Tensor& b);

/// Queues to = a b + bias. @return false if it is not a large product; then nothing is written
[[nodiscard]] bool multiply_large(const kernels::MatrixProduct& product);

/// a b for matrices. @param type  the result's type: the operands', or on a GPU the type of their sums
[[nodiscard]] at::Tensor matrix_product(const at::Tensor& a, const at::Tensor& b, c10::ScalarType type);

/// at::linear(x, weight, bias) without autograd, x [..., inputs]; undefined if it is not a large product.
[[nodiscard]] at::Tensor large_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace autopar::fused
