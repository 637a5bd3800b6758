#pragma once

#include <cstdint>
#include <tuple>

#include <torch/torch.h>

/// Operators as users write them with TORCH_LIBRARY, which nothing looks into, and models of them.
namespace own_operators {

using torch::Tensor;

/// Makes the operators known to autopar; before the first capture of the process, again without effect.
void register_all();

/// x [.., inputs] times weight [outputs, inputs], plus bias: a layer.
Tensor dense(const Tensor& x, const Tensor& weight, const Tensor& bias);
/// x * sigmoid(gate): element by element.
Tensor gated(const Tensor& x, const Tensor& gate);
/// Each row less its mean: works on the last dim.
Tensor centred(const Tensor& x);
/// The sum of all squares: what slices give adds up.
Tensor square_sum(const Tensor& x);

/// Two layers with a gate between, in two halves, and a loss. Cut between any two of its operators; its hidden units in
/// tensor shards.
struct Net : torch::nn::Module {
  static constexpr std::int64_t kWidth = 6, kHidden = 8;
  Net();
  Tensor forward(const Tensor& x, const Tensor& y);
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) {
    return {torch::randn({n, kWidth}).set_requires_grad(true), torch::randn({n, kWidth})};
  }
  Tensor up, up_bias, gate, down, down_bias, again, again_bias;
};

/// Operators that mix samples, of which nothing is known.
Tensor mixed(const Tensor& x);

}  // namespace own_operators
