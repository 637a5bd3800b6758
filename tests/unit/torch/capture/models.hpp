#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/autocast_mode.h>
#include <torch/nn.h>
#include <torch/types.h>

#include <nets.hpp>

#include "capture/trace/capture.hpp"

namespace autopar::test {

using Tensors = std::vector<at::Tensor>;

/// A model that also makes its own arguments.
struct TestModel : torch::nn::Module {
  virtual Tensors run(const Tensors& arguments) = 0;
  virtual Tensors arguments(std::int64_t batch) = 0;
};

struct Mlp : TestModel {
  torch::nn::Linear a, b, c;
  Mlp() : a(32, 64), b(64, 48), c(torch::nn::LinearOptions(48, 10).bias(false)) {
    nets::register_all(*this, "a", a, "b", b, "c", c);
  }
  Tensors run(const Tensors& in) override {
    auto x = torch::relu(a(in[0].view({in[0].size(0), -1})));
    return {torch::nn::functional::cross_entropy(c(torch::tanh(b(x))), in[1])};
  }
  Tensors arguments(std::int64_t n) override { return {torch::randn({n, 4, 8}), torch::randint(10, {n})}; }
};

struct ResidualBlock : torch::nn::Module {
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr}, shortcut{nullptr};
  torch::nn::BatchNorm2d norm1{nullptr}, norm2{nullptr};
  ResidualBlock(int in, int out, int stride) {
    using Options = torch::nn::Conv2dOptions;
    conv1 = register_module("conv1", torch::nn::Conv2d(Options(in, out, 3).stride(stride).padding(1).bias(false)));
    norm1 = register_module("norm1", torch::nn::BatchNorm2d(out));
    conv2 = register_module("conv2", torch::nn::Conv2d(Options(out, out, 3).padding(1).bias(false)));
    norm2 = register_module("norm2", torch::nn::BatchNorm2d(out));
    if (in != out) shortcut = register_module("shortcut", torch::nn::Conv2d(Options(in, out, 1).stride(stride)));
  }
  at::Tensor forward(at::Tensor x) {
    auto y = norm2(conv2(norm1(conv1(x)).relu_()));
    y += shortcut ? shortcut(x) : x;
    return torch::relu(y);
  }
};

struct ResNet : TestModel {
  torch::nn::Conv2d stem{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Sequential blocks;
  torch::nn::Linear head{nullptr};
  ResNet() {
    stem = register_module("stem", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(8));
    blocks = register_module("blocks", torch::nn::Sequential(ResidualBlock(8, 8, 1), ResidualBlock(8, 16, 2)));
    head = register_module("head", torch::nn::Linear(16, 10));
  }
  Tensors run(const Tensors& in) override {
    namespace F = torch::nn::functional;
    auto x = F::max_pool2d(norm(stem(in[0])).relu_(), F::MaxPool2dFuncOptions(2));
    x = F::adaptive_avg_pool2d(blocks->forward(x), F::AdaptiveAvgPool2dFuncOptions(1));
    return {F::cross_entropy(head(x.view({x.size(0), -1})), in[1])};
  }
  Tensors arguments(std::int64_t n) override { return {torch::randn({n, 3, 16, 16}), torch::randint(10, {n})}; }
};

struct EncoderLayer : torch::nn::Module {
  torch::nn::MultiheadAttention attention{nullptr};
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr};
  torch::nn::Dropout dropout{0.1};
  EncoderLayer(int width, int heads) {
    attention = register_module(
        "attention", torch::nn::MultiheadAttention(torch::nn::MultiheadAttentionOptions(width, heads).dropout(0.1)));
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    up = register_module("up", torch::nn::Linear(width, 4 * width));
    down = register_module("down", torch::nn::Linear(4 * width, width));
    register_module("dropout", dropout);
  }
  at::Tensor forward(at::Tensor x, at::Tensor mask) {
    auto y = norm1(x);
    x = x + dropout(std::get<0>(attention->forward(y, y, y, {}, false, mask)));
    return x + dropout(down(torch::gelu(up(norm2(x)))));
  }
};

/// Token and position embeddings, encoder layers in time-major order, output tied to the token embedding.
struct Transformer : TestModel {
  int vocabulary, length;
  torch::nn::Embedding tokens{nullptr}, positions{nullptr};
  torch::nn::ModuleList layers;
  torch::nn::LayerNorm norm{nullptr};
  Transformer(int vocab = 50, int time = 9, int width = 32, int heads = 4, int depth = 2)
      : vocabulary(vocab), length(time) {
    tokens = register_module("tokens", torch::nn::Embedding(vocab, width));
    positions = register_module("positions", torch::nn::Embedding(time, width));
    for (int i = 0; i < depth; ++i) layers->push_back(std::make_shared<EncoderLayer>(width, heads));
    register_module("layers", layers);
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
  }
  Tensors run(const Tensors& in) override {
    const auto n = in[0].size(0), t = in[0].size(1);
    auto place =
        torch::arange(t, torch::TensorOptions(torch::kLong).device(in[0].device())).unsqueeze(0).expand({n, t});
    auto x = (tokens(in[0]) + positions(place)).transpose(0, 1);
    auto mask = torch::full({t, t}, -1e9, x.options()).triu(1);
    for (auto& layer : *layers) x = layer->as<EncoderLayer>()->forward(x, mask);
    auto scores = torch::linear(norm(x.transpose(0, 1)), tokens->weight);
    return {torch::nn::functional::cross_entropy(scores.reshape({n * t, vocabulary}), in[1].reshape({-1}))};
  }
  Tensors arguments(std::int64_t n) override {
    return {torch::randint(vocabulary, {n, length}), torch::randint(vocabulary, {n, length})};
  }
};

struct Lstm : TestModel {
  torch::nn::LSTM lstm{torch::nn::LSTMOptions(6, 12).num_layers(2).batch_first(true)};
  torch::nn::Linear head{12, 3};
  Lstm() { nets::register_all(*this, "lstm", lstm, "head", head); }
  Tensors run(const Tensors& in) override {
    auto [out, state] = lstm->forward(in[0]);
    return {head(out.select(1, -1)), std::get<0>(state)};
  }
  Tensors arguments(std::int64_t n) override { return {torch::randn({n, 5, 6})}; }
};

/// In-place operators, views, lists, indices, masks, constants, no-grad regions.
struct Mixed : TestModel {
  static constexpr int kWidth = 24;
  torch::nn::Linear a, b;
  at::Tensor scale;
  Mixed() : a(kWidth, 3 * kWidth), b(kWidth, 10) {
    nets::register_all(*this, "a", a, "b", b);
    scale = register_buffer("scale", torch::linspace(0.5, 1.5, kWidth));
  }
  Tensors run(const Tensors& in) override {
    using torch::indexing::Slice;
    const auto x = in[0];
    const auto n = x.size(0);
    auto parts = a(x).relu_().chunk(3, -1);
    auto q = parts[0] * scale, k = parts[1] + 1.0, v = parts[2].clone();
    v.index({Slice(), Slice(0, kWidth / 2)}).add_(q.slice(1, 0, kWidth / 2));
    auto unbound = torch::unbind(torch::stack({q, k, v}, 1), 1);
    auto s = torch::stack(unbound, 0).sum(0);
    auto split = s.split_with_sizes({kWidth / 3, kWidth - kWidth / 3}, 1);
    s = torch::cat({split[1], split[0]}, 1);
    s = s + torch::arange(kWidth, x.options()) / kWidth + torch::zeros({n, kWidth}, x.options());
    s = s * torch::full({n, 1}, 0.5);
    auto mask = (torch::arange(kWidth) % 3 == 0).unsqueeze(0).expand({n, kWidth});
    s = s.masked_fill(mask, 0.25);
    s = s + 0.1 * s.index({torch::arange(n - 1, -1, -1)});
    s = s * torch::tensor({1.f, 2.f, 3.f})[1];
    s = s * torch::tensor(std::vector<float>(kWidth, 0.75f));
    auto shifted = torch::tensor({0.5f, 0.25f});
    shifted.add_(1.0);
    s = s * shifted[0];
    {
      const torch::NoGradGuard no_grad;
      auto mean = s.mean();
      s = s.detach() * 0.0 + mean * 0.0;
    }
    s = torch::where(mask, q, k) + s + v;
    s.index_put_({Slice(), 0}, 0.125);
    auto front = s.index({Slice(0, n - 1)});
    return {torch::nn::functional::cross_entropy(b(s), in[1]) + front.sum() * 0.01 / n};
  }
  Tensors arguments(std::int64_t n) override { return {torch::randn({n, kWidth}), torch::randint(10, {n})}; }
};

/// Embedding with padding, several results, a gradient to the argument.
struct Embedded : TestModel {
  torch::nn::Embedding table;
  torch::nn::GroupNorm norm;
  Embedded() : table(torch::nn::EmbeddingOptions(20, 8).padding_idx(0)), norm(torch::nn::GroupNormOptions(2, 8)) {
    nets::register_all(*this, "table", table, "norm", norm);
  }
  Tensors run(const Tensors& in) override {
    auto e = table(in[0]).transpose(1, 2) * in[1].unsqueeze(1);
    auto y = norm(e);
    return {y.max(), std::get<0>(y.topk(2, -1)).sum(-1), y.var(-1), y};
  }
  Tensors arguments(std::int64_t n) override {
    return {torch::randint(20, {n, 5}), torch::randn({n, 5}).set_requires_grad(true)};
  }
};

/// bfloat16 autocast inside the forward.
struct Autocast : TestModel {
  torch::nn::Linear a, b;
  Autocast() : a(16, 16), b(16, 4) { nets::register_all(*this, "a", a, "b", b); }
  Tensors run(const Tensors& in) override {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    auto y = torch::einsum("ni,mi->nm", {torch::relu(a(in[0])), b->weight});
    y = y + torch::linear(in[0], b->weight, b->bias).to(y.scalar_type());
    y = y * torch::one_hot(y.argmax(1), 4);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    return {y.to(torch::kFloat).pow(2).sum()};
  }
  Tensors arguments(std::int64_t n) override { return {torch::randn({n, 16})}; }
};

inline std::vector<trace::InputSpec> specs(const Tensors& arguments) {
  std::vector<trace::InputSpec> result;
  for (const auto& argument : arguments) result.push_back(trace::input_spec(argument));
  return result;
}

inline OpGraph capture_model(TestModel& model, const Tensors& arguments) {
  return trace::capture(model, specs(arguments), [&](const Tensors& in) { return model.run(in); });
}

inline OpGraph capture_model(TestModel& model) { return capture_model(model, model.arguments(4)); }

/// A model made of a lambda over one linear layer's result.
template <class Function>
struct LambdaModel : TestModel {
  torch::nn::Linear a;
  Function function;
  explicit LambdaModel(Function f) : a(8, 8), function(std::move(f)) { register_module("a", a); }
  Tensors run(const Tensors& in) override { return {function(a(in[0]), in[0])}; }
  Tensors arguments(std::int64_t n) override { return {torch::randn({n, 8})}; }
};

template <class Function>
std::shared_ptr<LambdaModel<Function>> model_of(Function function) {
  return std::make_shared<LambdaModel<Function>>(std::move(function));
}

}  // namespace autopar::test
