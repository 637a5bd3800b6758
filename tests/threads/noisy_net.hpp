#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <nets.hpp>

namespace nets {

/// Draws, and has a buffer that each call changes.
struct NoisyNetImpl : torch::nn::Module {
  NoisyNetImpl() { register_all(*this, "first", first, "norm", norm, "dropout", dropout, "second", second); }
  at::Tensor forward(const at::Tensor& x) { return second(dropout(norm(torch::relu(first(x))))).pow(2).mean(); }
  torch::nn::Linear first{4, 8}, second{8, 3};
  torch::nn::BatchNorm1d norm{8};
  torch::nn::Dropout dropout{0.5};
};
TORCH_MODULE(NoisyNet);

}  // namespace nets
