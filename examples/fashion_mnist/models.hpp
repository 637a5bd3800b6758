#pragma once

#include <tuple>

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

/// What a model returns for a batch: the mean loss, which is trained on, and how many samples it got right.
using Scores = std::tuple<torch::Tensor, torch::Tensor>;

inline Scores scores(const torch::Tensor& logits, const torch::Tensor& labels) {
  return {torch::nn::functional::cross_entropy(logits, labels), logits.argmax(1).eq(labels).sum()};
}

struct MlpImpl : torch::nn::Module {
  MlpImpl() {
    register_module("hidden1", hidden1);
    register_module("hidden2", hidden2);
    register_module("out", out);
  }
  Scores forward(const torch::Tensor& images, const torch::Tensor& labels) {
    const auto x = torch::relu(hidden2(torch::relu(hidden1(images.flatten(1)))));
    return scores(out(x), labels);
  }
  torch::nn::Linear hidden1{784, 128}, hidden2{128, 64}, out{64, 10};
};
TORCH_MODULE(Mlp);

/// Two 3 x 3 convolutions around a shortcut (He et al., CVPR 2016, figure 2).
struct ResidualImpl : torch::nn::Module {
  ResidualImpl(int64_t in, int64_t out, int64_t stride) {
    using Conv = torch::nn::Conv2dOptions;
    first = register_module("first", torch::nn::Conv2d(Conv(in, out, 3).stride(stride).padding(1).bias(false)));
    norm1 = register_module("norm1", torch::nn::BatchNorm2d(out));
    second = register_module("second", torch::nn::Conv2d(Conv(out, out, 3).padding(1).bias(false)));
    norm2 = register_module("norm2", torch::nn::BatchNorm2d(out));
    if (in != out || stride != 1) {
      shortcut = register_module("shortcut", torch::nn::Conv2d(Conv(in, out, 1).stride(stride).bias(false)));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = norm2(second(torch::relu(norm1(first(x)))));
    return torch::relu(y + (shortcut.is_empty() ? x : shortcut(x)));
  }
  torch::nn::Conv2d first{nullptr}, second{nullptr}, shortcut{nullptr};
  torch::nn::BatchNorm2d norm1{nullptr}, norm2{nullptr};
};
TORCH_MODULE(Residual);

struct CnnImpl : torch::nn::Module {
  CnnImpl() {
    register_module("stem", stem);
    register_module("norm", norm);
    register_module("blocks", blocks);
    register_module("out", out);
  }
  Scores forward(const torch::Tensor& images, const torch::Tensor& labels) {
    const auto x = blocks->forward(torch::relu(norm(stem(images))));
    return scores(out(x.mean({2, 3})), labels);
  }
  torch::nn::Conv2d stem{torch::nn::Conv2dOptions(1, 16, 3).stride(2).padding(1).bias(false)};
  torch::nn::BatchNorm2d norm{16};
  torch::nn::Sequential blocks{Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2)};
  torch::nn::Linear out{64, 10};
};
TORCH_MODULE(Cnn);
