#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn.h>
#include <torch/optim.h>

/// Small models whose plans are predicted and measured. Each returns its mean loss.
namespace models {

namespace nn = torch::nn;

/// Many small operators.
struct MlpImpl : nn::Module {
  static constexpr int kWidth = 256, kLayers = 10, kClasses = 16;
  nn::ModuleList layers;
  nn::Linear head{kWidth, kClasses};

  MlpImpl() {
    for (int i = 0; i < kLayers; ++i) layers->push_back(nn::Linear(kWidth, kWidth));
    register_module("layers", layers);
    register_module("head", head);
  }
  at::Tensor forward(at::Tensor x, const at::Tensor& classes) {
    for (const auto& layer : *layers) x = torch::relu(layer->as<nn::Linear>()->forward(x));
    return nn::functional::cross_entropy(head(x), classes);
  }
};
TORCH_MODULE(Mlp);

struct ResidualBlockImpl : nn::Module {
  nn::Conv2d first, second, shortcut{nullptr};
  nn::BatchNorm2d first_norm, second_norm;

  ResidualBlockImpl(int in, int out, int stride)
      : first(nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false)),
        second(nn::Conv2dOptions(out, out, 3).padding(1).bias(false)),
        first_norm(out),
        second_norm(out) {
    register_module("first", first);
    register_module("first_norm", first_norm);
    register_module("second", second);
    register_module("second_norm", second_norm);
    if (in != out) {
      shortcut = register_module("shortcut", nn::Conv2d(nn::Conv2dOptions(in, out, 1).stride(stride).bias(false)));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto y = second_norm(second(torch::relu(first_norm(first(x)))));
    return torch::relu(y + (shortcut ? shortcut(x) : x));
  }
};
TORCH_MODULE(ResidualBlock);

/// Convolutions and batch norms; early layers have large activations, late ones many parameters.
struct ResNetImpl : nn::Module {
  static constexpr int kChannels = 3, kSize = 32, kClasses = 10;
  nn::Conv2d stem{nn::Conv2dOptions(kChannels, 16, 3).padding(1).bias(false)};
  nn::BatchNorm2d stem_norm{16};
  nn::Sequential blocks;
  nn::Linear head{64, kClasses};

  ResNetImpl() {
    blocks->push_back(ResidualBlock(16, 16, 1));
    blocks->push_back(ResidualBlock(16, 32, 2));
    blocks->push_back(ResidualBlock(32, 32, 1));
    blocks->push_back(ResidualBlock(32, 64, 2));
    blocks->push_back(ResidualBlock(64, 64, 1));
    register_module("stem", stem);
    register_module("stem_norm", stem_norm);
    register_module("blocks", blocks);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& images, const at::Tensor& classes) {
    auto x = blocks->forward(torch::relu(stem_norm(stem(images))));
    return nn::functional::cross_entropy(head(x.mean({2, 3})), classes);
  }
};
TORCH_MODULE(ResNet);

struct EncoderLayerImpl : nn::Module {
  int width, heads;
  nn::Linear qkv, joined, up, down;
  nn::LayerNorm before, between;

  EncoderLayerImpl(int features, int parts)
      : width(features),
        heads(parts),
        qkv(features, 3 * features),
        joined(features, features),
        up(features, 4 * features),
        down(4 * features, features),
        before(nn::LayerNormOptions({features})),
        between(nn::LayerNormOptions({features})) {
    register_module("before", before);
    register_module("qkv", qkv);
    register_module("joined", joined);
    register_module("between", between);
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto samples = x.size(0), length = x.size(1);
    const auto split = [&](const at::Tensor& part) {
      return part.reshape({samples, length, heads, width / heads}).transpose(1, 2);
    };
    const auto parts = qkv(before(x)).chunk(3, -1);
    const auto q = split(parts[0]), k = split(parts[1]), v = split(parts[2]);
    const auto weights = torch::softmax(torch::matmul(q, k.transpose(-2, -1)) / std::sqrt(width / heads), -1);
    const auto y = x + joined(torch::matmul(weights, v).transpose(1, 2).reshape({samples, length, width}));
    return y + down(torch::gelu(up(between(y))));
  }
};
TORCH_MODULE(EncoderLayer);

/// An embedding and a head with most of the parameters, and attention between them.
struct TransformerImpl : nn::Module {
  static constexpr int kWords = 2000, kLength = 32, kWidth = 128, kHeads = 4, kLayers = 4;
  nn::Embedding words{kWords, kWidth};
  nn::Sequential layers;
  nn::LayerNorm norm{nn::LayerNormOptions({kWidth})};
  nn::Linear head{kWidth, kWords};

  TransformerImpl() {
    for (int i = 0; i < kLayers; ++i) layers->push_back(EncoderLayer(kWidth, kHeads));
    register_module("words", words);
    register_module("layers", layers);
    register_module("norm", norm);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& text, const at::Tensor& next) {
    const auto x = norm(layers->forward(words(text)));
    return nn::functional::cross_entropy(head(x).flatten(0, 1), next.flatten());
  }
};
TORCH_MODULE(Transformer);

/// Inputs of a rank's part of a step.
struct Batch {
  at::Tensor x, y;
};

/// How one of the models is trained: its samples a step on all ranks together, its data, its optimizer.
template <class Net>
struct Recipe;

template <>
struct Recipe<Mlp> {
  static constexpr std::int64_t kBatch = 256;
  static Batch batch(std::int64_t n) {
    return {torch::randn({n, MlpImpl::kWidth}), torch::randint(MlpImpl::kClasses, {n}, torch::kLong)};
  }
  static auto optimizer(std::vector<at::Tensor> parameters) { return torch::optim::SGD(std::move(parameters), 1e-3); }
};
template <>
struct Recipe<ResNet> {
  static constexpr std::int64_t kBatch = 32;
  static Batch batch(std::int64_t n) {
    return {torch::randn({n, ResNetImpl::kChannels, ResNetImpl::kSize, ResNetImpl::kSize}),
            torch::randint(ResNetImpl::kClasses, {n}, torch::kLong)};
  }
  static auto optimizer(std::vector<at::Tensor> parameters) {
    return torch::optim::SGD(std::move(parameters), torch::optim::SGDOptions(1e-3).momentum(0.9));
  }
};
template <>
struct Recipe<Transformer> {
  static constexpr std::int64_t kBatch = 32;
  static Batch batch(std::int64_t n) {
    const auto text = torch::randint(TransformerImpl::kWords, {n, TransformerImpl::kLength + 1}, torch::kLong);
    return {text.slice(1, 0, -1).contiguous(), text.slice(1, 1).contiguous()};
  }
  static auto optimizer(std::vector<at::Tensor> parameters) { return torch::optim::Adam(std::move(parameters), 1e-4); }
};

}  // namespace models
