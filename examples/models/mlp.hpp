#pragma once

#include <cstdint>

#include <torch/nn.h>

/// Networks of plain libtorch, in the sizes that people compare frameworks with. Each returns its mean loss.
namespace models {

/// `count` linear layers of `width` x `width`, without activations between them.
struct MlpImpl : torch::nn::Module {
  torch::nn::ModuleList layers;

  MlpImpl(std::int64_t width, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) layers->push_back(torch::nn::Linear(width, width));
    register_module("layers", layers);
  }
  at::Tensor forward(at::Tensor x, const at::Tensor& wanted) {
    for (const auto& layer : *layers) x = layer->as<torch::nn::Linear>()->forward(x);
    return torch::mse_loss(x, wanted);
  }
};
TORCH_MODULE(Mlp);

}  // namespace models
