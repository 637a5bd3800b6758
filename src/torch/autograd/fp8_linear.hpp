#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "torch/fp8/layers.hpp"

namespace autopar::autograd {

/// A split backward's formulas for one gradient.
struct BackwardFormulas {
  std::function<at::Tensor()> input{};                                     ///< the gradient of x
  std::function<std::vector<at::Tensor>(bool with_bias)> weights{};        ///< the gradients of weight and bias
  std::function<void(const std::vector<at::Tensor>& sums)> add_weights{};  ///< adds them
  /// Writes them; empty: zero the sums and add.
  std::function<void(const std::vector<at::Tensor>& sums)> write_weights{};
};

/// Whether a weight was gathered in 8 bits (parameters/fp8_shards.hpp), by the scale of the call.
[[nodiscard]] bool is_in_fp8(const at::Tensor& weight);

/// Whether a call runs in 8 bits: there are scales, its operands have 16 bits or its weight has 8, and the weight is
/// trained. Without gradients no weight is.
[[nodiscard]] bool runs_in_fp8(const fp8::Layer& layer, const at::Tensor& x, const at::Tensor& weight);

struct Fp8Result {
  at::Tensor y;
  fused::Fp8Rows x;       ///< transposed, for the backward; undefined where none follows
  fused::Fp8Rows weight;  ///< likewise; undefined: the backward casts the weight
};

/// y = x weight^T + bias without autograd, by a product in E4M3. @param seen  a backward follows, and magnitudes count
/// @pre runs_in_fp8
[[nodiscard]] Fp8Result fp8_linear(const fp8::Layer& layer, const at::Tensor& x, const at::Tensor& weight,
                                   const at::Tensor& bias, bool seen);

/// The formulas for a gradient in E5M2. They keep it, and none keeps the gradient itself but for a bias.
/// @param x, weight  of Fp8Result; a weight without unit is the weight itself, in 16 bits or in 8
[[nodiscard]] BackwardFormulas fp8_formulas(fp8::Layer& layer, const at::Tensor& gradient, const fused::Fp8Rows& x,
                                            const fused::Fp8Rows& weight);

/// What a training call in 16 bits tells a layer that has no scales yet.
void see_operands(const fp8::Layer& layer, const at::Tensor& x, const at::Tensor& weight);
void see_gradient(fp8::Layer& layer, const at::Tensor& gradient);

}  // namespace autopar::autograd
