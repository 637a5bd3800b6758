#pragma once

#include <cmath>
#include <cstdint>

#include <torch/nn.h>

/// Models that do not fit one device. Each returns its mean loss.
namespace models {

namespace nn = torch::nn;

/// Linear layers alone, each `width` x `width`.
struct MlpImpl : nn::Module {
  nn::ModuleList layers;

  MlpImpl(std::int64_t width, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) layers->push_back(nn::Linear(width, width));
    register_module("layers", layers);
  }
  at::Tensor forward(at::Tensor x, const at::Tensor& wanted) {
    for (const auto& layer : *layers) x = layer->as<nn::Linear>()->forward(x);
    return nn::functional::mse_loss(x, wanted);
  }
};
TORCH_MODULE(Mlp);

/// A layer of a transformer, norms first.
struct LayerImpl : nn::Module {
  std::int64_t width, heads;
  nn::LayerNorm before, between;
  nn::Linear qkv, joined, up, down;
  nn::Dropout dropout{0.1};

  LayerImpl(std::int64_t features, std::int64_t parts)
      : width(features),
        heads(parts),
        before(nn::LayerNormOptions({features})),
        between(nn::LayerNormOptions({features})),
        qkv(features, 3 * features),
        joined(features, features),
        up(features, 4 * features),
        down(4 * features, features) {
    register_module("before", before);
    register_module("qkv", qkv);
    register_module("joined", joined);
    register_module("between", between);
    register_module("up", up);
    register_module("down", down);
    register_module("dropout", dropout);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto samples = x.size(0), length = x.size(1);
    const auto split = [&](const at::Tensor& part) {
      return part.reshape({samples, length, heads, width / heads}).transpose(1, 2);
    };
    const auto parts = qkv(before(x)).chunk(3, -1);
    const auto q = split(parts[0]) / std::sqrt(static_cast<double>(width / heads));
    const auto weights = torch::softmax(torch::matmul(q, split(parts[1]).transpose(-2, -1)), -1);
    const auto attended = torch::matmul(dropout(weights), split(parts[2])).transpose(1, 2);
    const auto y = x + dropout(joined(attended.reshape({samples, length, width})));
    return y + dropout(down(torch::gelu(up(between(y)))));
  }
};
TORCH_MODULE(Layer);

/// Predicts each word of a text from those around it.
struct TransformerImpl : nn::Module {
  static constexpr std::int64_t kWords = 30'522, kFeaturesOfHead = 64;
  nn::Embedding words, places;
  nn::Sequential layers;
  nn::LayerNorm norm;
  nn::Linear head;

  TransformerImpl(std::int64_t width, std::int64_t count, std::int64_t length)
      : words(kWords, width), places(length, width), norm(nn::LayerNormOptions({width})), head(width, kWords) {
    for (std::int64_t i = 0; i < count; ++i) layers->push_back(Layer(width, width / kFeaturesOfHead));
    register_module("words", words);
    register_module("places", places);
    register_module("layers", layers);
    register_module("norm", norm);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& text, const at::Tensor& wanted) {
    const auto x = norm(layers->forward(words(text) + places->weight));
    return nn::functional::cross_entropy(head(x).flatten(0, 1), wanted.flatten());
  }
};
TORCH_MODULE(Transformer);

}  // namespace models
