#pragma once

#include <cstdint>
#include <vector>

#include <torch/torch.h>

/// What the programs train that are left, killed and started again.
namespace long_training {

/// Draws, in double precision.
struct NetImpl : torch::nn::Module {
  NetImpl() { to(torch::kDouble); }
  torch::Tensor forward(const torch::Tensor& x) { return out(drop(torch::tanh(in(x)))).pow(2).mean(); }
  torch::nn::Linear in = register_module("in", torch::nn::Linear(16, 32));
  torch::nn::Dropout drop = register_module("drop", torch::nn::Dropout(0.3));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(32, 4));
};
TORCH_MODULE(Net);

/// [samples, 16]
inline torch::Tensor data(std::int64_t samples) {
  return torch::sin(torch::arange(16 * samples, torch::kDouble)).reshape({samples, 16});
}

/// These rows of the data. @param picked  numbers of samples, as from Epochs::share
template <class Numbers>
torch::Tensor rows_of(const torch::Tensor& data, const Numbers& picked) {
  const std::vector<std::int64_t> rows(picked.begin(), picked.end());
  return data.index_select(0, torch::tensor(rows, torch::kLong));
}

}  // namespace long_training
