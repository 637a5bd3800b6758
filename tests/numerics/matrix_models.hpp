#pragma once

#include <tuple>
#include <vector>

#include <torch/torch.h>

#include <nets.hpp>

/// The models of the fidelity matrix: small, double precision by the caller's default dtype, each with one trait that a
/// partitioned training can get wrong. `batch(n)` makes arguments for n samples from the current generator.
namespace zoo {

namespace nn = torch::nn;
namespace F = torch::nn::functional;
using torch::Tensor;

inline Tensor labels(int64_t n, int64_t classes) { return torch::randint(classes, {n}, torch::kLong); }

struct LeNet : nn::Module {
  LeNet() { nets::register_all(*this, "conv1", conv1, "conv2", conv2, "fc1", fc1, "fc2", fc2); }
  Tensor forward(Tensor x, const Tensor& y) {
    x = F::max_pool2d(torch::relu(conv1(x)), F::MaxPool2dFuncOptions(2));
    x = F::avg_pool2d(torch::tanh(conv2(x)), F::AvgPool2dFuncOptions(2));
    x = torch::relu(fc1(x.view({x.size(0), -1})));
    return F::cross_entropy(fc2(x), y);
  }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 1, 12, 12}), labels(n, 5)); }
  nn::Conv2d conv1{nn::Conv2dOptions(1, 3, 3)}, conv2{nn::Conv2dOptions(3, 4, 2)};
  nn::Linear fc1{16, 8}, fc2{8, 5};
};

struct ThreeLinears : nets::LayerList {
  ThreeLinears() : LayerList(3, 6, false) {}
  Tensor forward(Tensor x) {
    for (auto& layer : layers) x = layer(x);
    return x;
  }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 6}).requires_grad_()); }
};

/// The ways to write a linear layer, of two and three dimensions.
struct HandLinears : nn::Module {
  HandLinears() {
    const auto make = [&](const std::string& name, int64_t out, int64_t in) {
      return register_parameter(name, torch::linspace(-1, 1, out * in).cos().view({out, in}) / 2);
    };
    w1 = make("w1", 5, 4), w2 = make("w2", 6, 5), w3 = make("w3", 7, 12), w4 = make("w4", 2, 7);
    b1 = register_parameter("b1", torch::linspace(0, 1, 5));
    b2 = register_parameter("b2", torch::linspace(-1, 0, 6));
    b3 = register_parameter("b3", torch::linspace(-1, 1, 7));
    register_module("middle", middle);
  }
  Tensor forward(const Tensor& x, const Tensor& target) {
    auto h = torch::tanh(x.matmul(w1.t()) + b1);
    h = torch::tanh(b2 + h.matmul(w2.t()));
    h = torch::tanh(middle(h)).view({x.size(0), -1});
    return F::mse_loss(torch::tanh(torch::addmm(b3, h, w3.t())).matmul(w4.t()), target);
  }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 2, 4}).requires_grad_(), torch::randn({n, 2})); }
  Tensor w1, w2, w3, w4, b1, b2, b3;
  nn::Linear middle{6, 6};
};

struct Inner : nets::Sequence {
  Inner() : Sequence(nn::Sequential{nn::Linear(5, 7), nn::ReLU(), nn::Linear(7, 5)}) {}
  Tensor forward(const Tensor& x) { return x + Sequence::forward(x); }
};

struct Nested : nn::Module {
  Nested() {
    nets::register_all(*this, "first", first, "second", second);
    scale = register_parameter("scale", torch::linspace(0.5, 1.5, 5));
  }
  Tensor forward(const Tensor& x, const Tensor& target) {
    return F::mse_loss(second->forward(first->forward(x) * scale), target);
  }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 5}), torch::randn({n, 5})); }
  std::shared_ptr<Inner> first = std::make_shared<Inner>(), second = std::make_shared<Inner>();
  Tensor scale;
};

/// Class weights and ignored labels: the mean divides by the weight of what counts, over all ranks.
struct WeightedCrossEntropy : nets::Linears {
  WeightedCrossEntropy() : Linears(6, {{"a", 9}, {"b", 4}}, torch::relu) {
    weight = register_buffer("weight", torch::tensor({0.3, 1.0, 2.5, 0.7}, torch::get_default_dtype()));
  }
  Tensor forward(const Tensor& x, const Tensor& y) {
    return F::cross_entropy(Linears::forward(x), y, F::CrossEntropyFuncOptions().weight(weight).ignore_index(-100));
  }
  static auto batch(int64_t n) {
    auto y = labels(n, 4);
    y.masked_fill_(torch::rand({n}) < 0.4, -100);
    if (n > 0) y[n - 1] = 2;
    return std::tuple(torch::randn({n, 6}), y);
  }
  Tensor weight;
};

struct SumLoss : nets::Linears {
  SumLoss() : Linears(4, {{"a", 6}, {"b", 3}}, [](const Tensor& h) { return torch::gelu(h); }) {}
  Tensor forward(const Tensor& x, const Tensor& target) {
    return F::mse_loss(Linears::forward(x), target, F::MSELossFuncOptions().reduction(torch::kSum));
  }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 4}).requires_grad_(), torch::randn({n, 3})); }
};

/// Two terms whose means have different counts, as in BERT's pre-training.
struct TwoTerms : nn::Module {
  TwoTerms() { nets::register_all(*this, "embed", embed, "body", body, "tokens", tokens, "next", next); }
  Tensor forward(const Tensor& ids, const Tensor& token_labels, const Tensor& next_labels) {
    const auto x = torch::tanh(body(embed(ids)));
    const auto token_loss = F::cross_entropy(tokens(x).view({-1, 11}), token_labels.view({-1}),
                                             F::CrossEntropyFuncOptions().ignore_index(-1));
    return token_loss + F::cross_entropy(next(x.select(1, 0)), next_labels);
  }
  static auto batch(int64_t n) {
    auto y = torch::randint(11, {n, 4}, torch::kLong);
    y.masked_fill_(torch::rand({n, 4}) < 0.6, -1);
    if (n > 0) y[0][1] = 3;
    return std::tuple(torch::randint(11, {n, 4}, torch::kLong), y, labels(n, 2));
  }
  nn::Embedding embed{11, 6};
  nn::Linear body{6, 6}, tokens{6, 11}, next{6, 2};
};

struct MaskedMean : nets::Linears {
  MaskedMean() : Linears(4, {{"a", 5}, {"b", 1}}, torch::sigmoid) {}
  Tensor forward(const Tensor& x, const Tensor& mask) {
    const auto error = Linears::forward(x).squeeze(-1).pow(2);
    return (error * mask).sum() / mask.sum();
  }
  static auto batch(int64_t n) {
    auto mask = (torch::rand({n, 3}) < 0.5).to(torch::get_default_dtype());
    if (n > 0) mask[n - 1][0] = 1.0;
    return std::tuple(torch::randn({n, 3, 4}).requires_grad_(), mask);
  }
};

/// A term that depends on weights alone counts once, however many micro-batches and replicas there are.
struct Regularised : nets::Linears {
  Regularised() : Linears(5, {{"a", 8}, {"b", 3}}, torch::relu) {}
  Tensor forward(const Tensor& x, const Tensor& y) {
    const auto loss = F::cross_entropy(Linears::forward(x), y);
    return loss + 0.01 * (layers[0]->weight.pow(2).sum() + layers[1]->weight.abs().sum()) + 0.5;
  }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 5}), labels(n, 3)); }
};

struct SharedLinear : nn::Module {
  SharedLinear() { nets::register_all(*this, "shared", shared, "out", out); }
  Tensor forward(Tensor x, const Tensor& target) {
    for (int i = 0; i < 3; ++i) x = torch::tanh(shared(x));
    return F::mse_loss(out(x), target);
  }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 6}), torch::randn({n, 2})); }
  nn::Linear shared{6, 6}, out{6, 2};
};

struct TiedEmbedding : nets::Tabled {
  TiedEmbedding() : Tabled({13, 5}, 1, {{"a", 7}, {"b", 5}}, torch::relu) {}
  Tensor forward(const Tensor& ids, const Tensor& y) {
    const auto x = torch::tanh(Linears::forward(table(ids)));
    return F::cross_entropy(torch::linear(x, table->weight).reshape({-1, 13}), y.reshape({-1}));
  }
  static auto batch(int64_t n) {
    return std::tuple(torch::randint(13, {n, 3}, torch::kLong), torch::randint(13, {n, 3}, torch::kLong));
  }
};

struct ForkJoin : nn::Module {
  ForkJoin() { nets::register_all(*this, "stem", stem, "left", left, "right", right, "out", out); }
  Tensor forward(const Tensor& x, const Tensor& target) {
    const auto s = torch::relu(stem(x));
    return F::mse_loss(out(torch::cat({left(s), right(s).tanh()}, 1)), target);
  }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 4}).requires_grad_(), torch::randn({n, 2})); }
  nn::Linear stem{4, 6}, left{6, 3}, right{6, 3}, out{6, 2};
};

/// One value read by three layers, the last of them far away: skips over several stages.
struct Skips : nets::Linears {
  Skips() : Linears(5, nets::repeated("layer", 5, 5)) {}
  Tensor forward(const Tensor& x) {
    const auto s = torch::tanh(layers[0](x));
    const auto t = torch::tanh(layers[1](s)) + s;
    const auto u = torch::tanh(layers[2](t));
    const auto v = torch::tanh(layers[3](u + s));
    return layers[4](v) + s + x;
  }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 5}).requires_grad_()); }
};

struct HandLayerNorm : nets::TwoLinears {
  HandLayerNorm() : TwoLinears(4, 6, 3) {
    gain = register_parameter("gain", torch::ones({6}));
    bias = register_parameter("bias", torch::zeros({6}));
  }
  Tensor normalise(const Tensor& x) {
    const auto wide = x.to(torch::kDouble);
    const auto mean = wide.mean(-1, true);
    const auto variance = (wide - mean).pow(2).mean(-1, true);
    return ((wide - mean) / torch::sqrt(variance + 1e-5)).to(x.scalar_type()) * gain + bias;
  }
  Tensor forward(const Tensor& x, const Tensor& y) { return F::cross_entropy(b(normalise(a(x))), y); }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 4}), labels(n, 3)); }
  Tensor gain, bias;
};

template <bool kAffine, bool kRunning>
struct BatchNormNet : nets::CrossEntropy<nets::BatchNormed> {
  BatchNormNet() : CrossEntropy(4, nn::BatchNorm1dOptions(6).affine(kAffine).track_running_stats(kRunning), 3) {}
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 4}), labels(n, 3)); }
};

struct EmbeddingNet : nets::Tabled {
  EmbeddingNet() : Tabled({9, 4}, 1, {{"out", 2}}) {}
  Tensor forward(const Tensor& ids) { return Linears::forward(table(ids).mean(1)); }
  static auto batch(int64_t n) { return std::tuple(torch::randint(9, {n, 5}, torch::kLong)); }
};

struct NoParameters : nn::Module {
  Tensor forward(const Tensor& x) { return torch::softmax(x * 2.0, 1) + x.sin(); }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 4}).requires_grad_()); }
};

struct InPlaceViews : nets::TwoLinears {
  InPlaceViews() : TwoLinears(4, 6, 2) {}
  Tensor forward(const Tensor& x, const Tensor& target) {
    auto y = a(x);
    y.mul_(0.5).add_(1.0).relu_();
    auto z = y.clone();
    z.narrow(1, 0, 3).add_(y.slice(1, 3, 6));
    z.select(1, 5).zero_();
    const auto w = b(z.view({x.size(0), 2, 3}).transpose(1, 2).reshape({-1, 6}));
    return F::l1_loss(w, target);
  }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 4}).requires_grad_(), torch::randn({n, 2})); }
};

struct Pieces : nn::Module {
  Pieces() { nets::register_all(*this, "a", a, "b", b); }
  Tensor forward(const Tensor& x, const Tensor& y) {
    const auto parts = a(x).chunk(3, -1);
    const auto stacked = torch::stack({parts[0], parts[1].sigmoid(), parts[2]}, 1).sum(1);
    const auto split = stacked.split_with_sizes({1, 3}, 1);
    auto z = torch::cat({split[1], split[0]}, 1);
    z = z + torch::arange(4, z.options()) / 4;
    z = z.masked_fill((torch::arange(4, torch::TensorOptions(z.device()).dtype(torch::kLong)) % 2 == 0).unsqueeze(0),
                      0.25);
    z = z.index({torch::indexing::Slice(), torch::tensor({3, 1, 0, 2}, torch::kLong)});
    z = torch::where(z > 0.3, z, parts[1]);
    return F::cross_entropy(b(z), y);
  }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 5}), labels(n, 3)); }
  nn::Linear a{5, 12}, b{4, 3};
};

struct SeveralOutputs : nn::Module {
  SeveralOutputs() { nets::register_all(*this, "body", body, "left", left, "right", right); }
  std::tuple<Tensor, std::vector<Tensor>> forward(const Tensor& x) {
    const auto h = torch::tanh(body(x));
    return {left(h), {right(h), h.sum(1)}};
  }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 4}).requires_grad_()); }
  nn::Linear body{4, 5}, left{5, 2}, right{5, 3};
};

struct Pair {
  Tensor x;
  Tensor mask;
};
struct Result {
  Tensor hidden;
  std::optional<Tensor> masked;
};

struct Structs : nets::TwoLinears {
  Structs() : TwoLinears(4, 5, 2) {}
  Result forward(const Pair& in) {
    const auto h = torch::relu(a(in.x));
    return {b(h), h * in.mask};
  }
  static auto batch(int64_t n) {
    return std::tuple(
        Pair{torch::randn({n, 4}).requires_grad_(), (torch::rand({n, 5}) < 0.5).to(torch::get_default_dtype())});
  }
};

/// Sequence first: [time, batch, features].
struct BatchInDim1 : nets::TwoLinears {
  BatchInDim1() : TwoLinears(4, 5, 2) {}
  Tensor forward(const Tensor& x) { return b(torch::tanh(a(x)).cumsum(0)); }
  static auto batch(int64_t n) { return std::tuple(torch::randn({3, n, 4}).requires_grad_()); }
};

/// The second argument is the same for all samples.
struct SharedArgument : nets::TwoLinears {
  SharedArgument() : TwoLinears(4, 5, 2) {}
  Tensor forward(const Tensor& x, const Tensor& scale) { return b(torch::relu(a(x)) * scale); }
  static auto batch(int64_t n) {
    return std::tuple(torch::randn({n, 4}), torch::linspace(0.5, 2, 5, torch::get_default_dtype()));
  }
};

struct DropoutNet : nn::Module {
  explicit DropoutNet(double p = 0) : drop(p) { nets::register_all(*this, "a", a, "drop", drop, "b", b); }
  Tensor forward(const Tensor& x) { return b(drop(torch::relu(a(x)))); }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 4})); }
  nn::Linear a{4, 64};
  nn::Dropout drop;
  nn::Linear b{64, 2};
};

struct EncoderLayer : nn::Module {
  EncoderLayer() {
    nets::register_all(*this, "attention", attention, "norm1", norm1, "norm2", norm2, "up", up, "down", down);
  }
  Tensor forward(const Tensor& x, const Tensor& mask) {
    const auto y = norm1(x);
    const auto z = x + std::get<0>(attention(y, y, y, Tensor(), false, mask));
    return z + down(torch::gelu(up(norm2(z))));
  }
  nn::MultiheadAttention attention{nn::MultiheadAttentionOptions(8, 2)};
  nn::LayerNorm norm1{nn::LayerNormOptions({8})}, norm2{nn::LayerNormOptions({8})};
  nn::Linear up{8, 16}, down{16, 8};
};

struct Transformer : nn::Module {
  Transformer() {
    nets::register_all(*this, "tokens", tokens, "positions", positions);
    for (int i = 0; i < 2; ++i) layers->push_back(std::make_shared<EncoderLayer>());
    nets::register_all(*this, "layers", layers, "norm", norm, "head", head);
  }
  Tensor forward(const Tensor& ids, const Tensor& y) {
    const auto length = ids.size(1);
    const auto position = torch::arange(length, torch::TensorOptions(ids.device()).dtype(torch::kLong));
    auto x = (tokens(ids) + positions(position).unsqueeze(0)).transpose(0, 1);
    const auto mask = torch::full({length, length}, -1e9, x.options()).triu(1);
    for (const auto& layer : *layers) x = layer->as<EncoderLayer>()->forward(x, mask);
    const auto logits = head(norm(x).transpose(0, 1));
    return F::cross_entropy(logits.reshape({-1, 12}), y.reshape({-1}));
  }
  static auto batch(int64_t n) {
    return std::tuple(torch::randint(12, {n, 5}, torch::kLong), torch::randint(12, {n, 5}, torch::kLong));
  }
  nn::Embedding tokens{12, 8}, positions{5, 8};
  nn::ModuleList layers;
  nn::LayerNorm norm{nn::LayerNormOptions({8})};
  nn::Linear head{8, 12};
};

struct ResidualBlock : nn::Module {
  ResidualBlock(int64_t in, int64_t out, int64_t stride)
      : conv1(nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false)),
        conv2(nn::Conv2dOptions(out, out, 3).padding(1).bias(false)),
        shortcut(nn::Conv2dOptions(in, out, 1).stride(stride)),
        norm1(out),
        norm2(out) {
    nets::register_all(*this, "conv1", conv1, "conv2", conv2, "shortcut", shortcut, "norm1", norm1, "norm2", norm2);
  }
  Tensor forward(const Tensor& x) {
    auto y = norm2(conv2(norm1(conv1(x)).relu_()));
    y += shortcut(x);
    return torch::relu(y);
  }
  nn::Conv2d conv1, conv2, shortcut;
  nn::BatchNorm2d norm1, norm2;
};

struct ResNet : nn::Module {
  ResNet() { nets::register_all(*this, "stem", stem, "blocks", blocks, "out", out); }
  Tensor forward(const Tensor& x, const Tensor& y) {
    const auto h = blocks->forward(torch::relu(stem(x)));
    return F::cross_entropy(out(F::adaptive_avg_pool2d(h, F::AdaptiveAvgPool2dFuncOptions(1)).flatten(1)), y);
  }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 2, 8, 8}), labels(n, 3)); }
  nn::Conv2d stem{nn::Conv2dOptions(2, 4, 3).padding(1)};
  nn::Sequential blocks{ResidualBlock(4, 4, 1), ResidualBlock(4, 6, 2)};
  nn::Linear out{6, 3};
};

struct LstmNet : nn::Module {
  LstmNet() { nets::register_all(*this, "lstm", lstm, "out", out); }
  Tensor forward(const Tensor& x, const Tensor& target) {
    const auto h = std::get<0>(lstm->forward(x));
    return F::smooth_l1_loss(out(h.select(1, -1)), target);
  }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 4, 3}), torch::randn({n, 2})); }
  nn::LSTM lstm{nn::LSTMOptions(3, 5).num_layers(2).batch_first(true)};
  nn::Linear out{5, 2};
};

/// The loss is a non-linear function of a mean: its gradient needs the whole batch's value.
struct RootMeanSquare : nets::Linears {
  RootMeanSquare() : Linears(4, {{"a", 5}, {"b", 2}}) {}
  Tensor forward(const Tensor& x, const Tensor& target) {
    return torch::sqrt(F::mse_loss(Linears::forward(x), target) + 1e-8);
  }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 4}).requires_grad_(), torch::randn({n, 2})); }
};

/// The batch size as a number.
struct SumOverBatchSize : nets::Linears {
  SumOverBatchSize() : Linears(4, {{"a", 5}, {"b", 2}}) {}
  Tensor forward(const Tensor& x, const Tensor& target) {
    return (Linears::forward(x) - target).pow(2).sum() / x.size(0);
  }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 4}), torch::randn({n, 2})); }
};

/// Floating point numbers made of the batch size.
struct NumbersOfBatch : nets::TwoLinears {
  NumbersOfBatch() : TwoLinears(4, 5, 2) {}
  Tensor forward(const Tensor& x, const Tensor& target) {
    const auto n = x.size(0), rows = x.size(0) * x.size(1);
    const auto h = torch::tanh(a(x));
    const auto error = (b(h) - target).pow(2);
    return error.sum() * (1.0 / static_cast<double>(n)) + error.abs().sum() / static_cast<float>(rows) +
           h.pow(2).sum() * (0.1 / static_cast<double>(rows)) + (h * (1.0 / static_cast<double>(n))).sum() +
           error.sum() / (0.5 * static_cast<double>(n)) + error.mean() * (1.0f / static_cast<float>(n)) +
           1.0 / static_cast<double>(n);
  }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 3, 4}), torch::randn({n, 3, 2})); }
};

/// The same before the pipeline (a sum of targets) and after it (a root of a mean).
struct NumbersAround : nets::Linears {
  NumbersAround() : Linears(4, {{"a", 5}, {"b", 2}}) {}
  Tensor forward(const Tensor& x, const Tensor& target) {
    const auto n = static_cast<double>(x.size(0));
    const auto centre = target.sum() * (0.1 / n);
    const auto error = (Linears::forward(x) - target + centre).pow(2);
    return torch::sqrt(error.sum() * (1.0 / n) + 1e-8) * (2.0 / (n + 1)) + 0.25 * n;
  }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 4}), torch::randn({n, 2})); }
};

/// Norms of each sample, whose running statistics follow all samples.
struct StyleNet : nn::Module {
  StyleNet() { nets::register_all(*this, "a", a, "norm", norm, "b", b, "last", last); }
  Tensor forward(const Tensor& x, const Tensor& target) {
    return F::mse_loss(last(b(torch::relu(norm(a(x))))), target);
  }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 2, 6}) + 1, torch::randn({n, 3, 6})); }
  nn::Conv1d a{nn::Conv1dOptions(2, 4, 3).padding(1)}, b{nn::Conv1dOptions(4, 3, 1)};
  nn::InstanceNorm1d norm{nn::InstanceNorm1dOptions(4).affine(true).track_running_stats(true).momentum(0.3)};
  nn::InstanceNorm1d last{nn::InstanceNorm1dOptions(3).track_running_stats(true)};
};

/// Speech recognition: sequences of different lengths, one row of labels for each sample.
struct Transcriber : nets::Linears {
  Transcriber() : Linears(4, {{"a", 6}, {"b", 5}}) {}
  Tensor forward(const Tensor& x, const Tensor& y, const Tensor& y_lengths) {
    const auto scores = Linears::forward(x).transpose(0, 1).log_softmax(2);
    const auto x_lengths = torch::full({x.size(0)}, x.size(1), y_lengths.options());
    return F::ctc_loss(scores, y, x_lengths, y_lengths);
  }
  static auto batch(int64_t n) {
    return std::tuple(torch::randn({n, 7, 4}).requires_grad_(), labels(n * 3, 4).view({n, 3}) + 1, labels(n, 3) + 1);
  }
};

/// Windows of an image are rows of a larger batch and become an image again.
struct WindowAttention : nn::Module {
  WindowAttention() {
    nets::register_all(*this, "qkv", qkv, "out", out);
    table = register_parameter("table", torch::linspace(-1, 1, 18).view({9, 2}));
    index = register_buffer("index", (torch::arange(16, torch::kLong) * 7 % 9).view({4, 4}));
  }
  Tensor forward(const Tensor& x, const Tensor& y) {
    const auto batch = x.size(0);
    auto w = torch::roll(x, {-1, -1}, {1, 2}).view({batch, 2, 2, 2, 2, 6}).permute({0, 1, 3, 2, 4, 5});
    const auto parts = qkv(w.contiguous().view({-1, 4, 6})).view({-1, 4, 3, 2, 3}).permute({2, 0, 3, 1, 4}).unbind(0);
    const auto bias = table.index({index.view({-1})}).view({4, 4, 2}).permute({2, 0, 1});
    auto scores = torch::matmul(parts[0], parts[1].transpose(-2, -1)) + bias.unsqueeze(0);
    const auto mask = torch::eye(4).unsqueeze(0).repeat({4, 1, 1}) * -1.5;
    scores = (scores.view({batch, 4, 2, 4, 4}) + mask.unsqueeze(1).unsqueeze(0)).view({-1, 2, 4, 4}).softmax(-1);
    w = torch::matmul(scores, parts[2]).transpose(1, 2).reshape({-1, 2, 2, 6});
    w = w.view({-1, 2, 2, 2, 2, 6}).permute({0, 1, 3, 2, 4, 5}).contiguous().view({batch, 4, 4, 6});
    return F::cross_entropy(out((torch::roll(w, {1, 1}, {1, 2}) + x).mean(torch::IntArrayRef{1, 2})), y);
  }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 4, 4, 6}), labels(n, 3)); }
  nn::Linear qkv{6, 18}, out{6, 3};
  Tensor table, index;
};

/// Rotary positions, heads that share keys, root-mean-square norms, a gated layer.
struct RotaryDecoder : nn::Module {
  RotaryDecoder() {
    register_module("embed", embed);
    for (auto* layer : {&q, &k, &v, &o, &gate, &up, &down, &head}) {
      register_module("layer" + std::to_string(children().size()), *layer);
    }
    gain = register_parameter("gain", torch::ones({8}));
    const auto angles = torch::outer(torch::arange(6).to(torch::get_default_dtype()), torch::tensor({1.0, 0.01}));
    turns = register_buffer("turns", torch::polar(torch::ones_like(angles), angles));
  }
  Tensor normalise(const Tensor& x) { return x * torch::rsqrt(x.pow(2).mean(-1, true) + 1e-6) * gain; }
  Tensor turn(const Tensor& x) {
    const auto pairs = torch::view_as_complex(x.reshape({x.size(0), x.size(1), -1, 2, 2}));
    const auto turned = pairs * turns.narrow(0, 0, x.size(1)).view({1, x.size(1), 1, 2});
    return torch::view_as_real(turned).flatten(3).transpose(1, 2);
  }
  Tensor forward(const Tensor& ids, const Tensor& y) {
    const auto n = ids.size(0), t = ids.size(1);
    auto x = embed(ids);
    const auto h = normalise(x);
    const auto keys = turn(k(h)).repeat_interleave(2, 1);
    const auto values = v(h).view({n, t, 1, 1, 4}).expand({n, t, 1, 2, 4}).reshape({n, t, 2, 4}).transpose(1, 2);
    const auto mixed = torch::scaled_dot_product_attention(turn(q(h)), keys, values, {}, 0.0, true);
    x = x + o(mixed.transpose(1, 2).contiguous().view({n, t, -1}));
    const auto g = normalise(x);
    x = x + down(F::silu(gate(g)) * up(g));
    return F::cross_entropy(head(x).transpose(1, 2), y);
  }
  static auto batch(int64_t n) {
    return std::tuple(torch::randint(11, {n, 5}, torch::kLong), torch::randint(11, {n, 5}, torch::kLong));
  }
  nn::Embedding embed{11, 8};
  nn::Linear q{8, 8}, k{8, 4}, v{8, 4}, o{8, 8}, gate{8, 12}, up{8, 12}, down{12, 8}, head{8, 11};
  Tensor gain, turns;
};

/// Rows are written one by one into memory that has no history before; complex values cross stages.
struct WrittenRows : nn::Module {
  WrittenRows() { nets::register_all(*this, "a", a, "b", b); }
  Tensor forward(const Tensor& x, const Tensor& target) {
    const auto h = a(x);
    auto rows = torch::empty({x.size(0), 3, 6}, h.options());
    for (int64_t t = 0; t < 3; ++t) rows.select(1, t).copy_(h.select(1, 2 - t) * double(t + 1));
    auto wave = torch::fft::rfft(torch::tanh(rows), c10::nullopt, -1);
    wave = wave * (wave.abs() > 0.5);
    const auto padded = F::pad(torch::fft::irfft(wave, 6, -1), F::PadFuncOptions({1, 1}).mode(torch::kCircular));
    return F::smooth_l1_loss(b(padded), target);
  }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 3, 4}).requires_grad_(), torch::randn({n, 3, 2})); }
  nn::Linear a{4, 6}, b{8, 2};
};

/// Bags of entries, nearest rows of a table with the gradient passed straight through, distances, diagonals.
struct Codebook : nn::Module {
  Codebook() {
    nets::register_all(*this, "bags", bags, "a", a, "b", b);
    codes = register_parameter("codes", torch::linspace(-1, 1, 15).sin().view({5, 3}));
  }
  Tensor forward(const Tensor& ids, const Tensor& target) {
    const auto z = a(bags(ids));
    const auto distance = torch::cdist(z.unsqueeze(0), codes.unsqueeze(0)).squeeze(0);
    const auto nearest = codes.index_select(0, distance.argmin(1));
    const auto quantised = z + (nearest - z).detach();
    const auto spread = torch::diagonal(torch::bmm(z.unsqueeze(2), z.unsqueeze(1)), 0, 1, 2).sum(1).mean();
    return F::mse_loss(b(quantised), target) + F::mse_loss(nearest, z.detach()) + 0.1 * spread;
  }
  static auto batch(int64_t n) { return std::tuple(torch::randint(9, {n, 4}, torch::kLong), torch::randn({n, 2})); }
  nn::EmbeddingBag bags{nn::EmbeddingBagOptions(9, 4).mode(torch::kMean)};
  nn::Linear a{4, 3}, b{3, 2};
  Tensor codes;
};

/// Weights of samples that are normalised over the whole batch before the pipeline starts.
struct Advantages : nn::Module {
  Advantages() { nets::register_all(*this, "a", a, "policy", policy, "value", value); }
  Tensor forward(const Tensor& x, const Tensor& action, const Tensor& reward) {
    const auto h = torch::tanh(a(x));
    const auto centred = reward - reward.mean();
    const auto advantage = centred / (centred.pow(2).mean().sqrt() + 1e-8);
    const auto log_p = torch::log_softmax(policy(h), -1);
    const auto gain = torch::min(log_p.gather(1, action.unsqueeze(1)).squeeze(1) * advantage, advantage.abs());
    return -gain.sum() / double(x.size(0)) + F::mse_loss(value(h).squeeze(), reward) +
           0.1 * (log_p.exp() * log_p).sum(-1).mean();
  }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 4}), labels(n, 3), torch::randn({n}) * 3 + 1); }
  nn::Linear a{4, 6}, policy{6, 3}, value{6, 1};
};

/// An encoder and decoder with skips; the loss is a ratio of sums over the whole batch.
struct UNet : nn::Module {
  UNet() { nets::register_all(*this, "down", down, "deep", deep, "up", up, "out", out); }
  Tensor forward(const Tensor& x, const Tensor& mask) {
    const auto a = torch::relu(down(x));
    const auto b = torch::relu(deep(F::max_pool2d(a, F::MaxPool2dFuncOptions(2))));
    const auto size = std::vector<int64_t>{a.size(2), a.size(3)};
    const auto resized =
        F::interpolate(b, F::InterpolateFuncOptions().size(size).mode(torch::kBilinear).align_corners(false));
    const auto p = torch::sigmoid(out(torch::cat({a, up(b), resized}, 1)));
    return 1 - (2 * (p * mask).sum() + 1) / (p.sum() + mask.sum() + 1);
  }
  static auto batch(int64_t n) {
    return std::tuple(torch::randn({n, 1, 6, 6}), (torch::rand({n, 1, 6, 6}) < 0.5).to(torch::get_default_dtype()));
  }
  nn::Conv2d down{nn::Conv2dOptions(1, 3, 3).padding(1)}, deep{nn::Conv2dOptions(3, 4, 3).padding(1)};
  nn::ConvTranspose2d up{nn::ConvTranspose2dOptions(4, 3, 2).stride(2)};
  nn::Conv2d out{nn::Conv2dOptions(10, 1, 1)};
};

/// A decoder that reads the right token at each step, with a learned first state: labels are columns of one tensor.
struct TeacherForcing : nn::Module {
  TeacherForcing() {
    nets::register_all(*this, "embed", embed, "cell", cell, "out", out);
    first = register_parameter("first", torch::linspace(-1, 1, 6));
  }
  Tensor forward(const Tensor& tokens) {
    auto h = first.unsqueeze(0).expand({tokens.size(0), 6});
    auto loss = torch::zeros({}, h.options());
    for (int64_t t = 0; t + 1 < tokens.size(1); ++t) {
      h = cell(embed(tokens.select(1, t)), h);
      loss = loss + F::cross_entropy(out(h), tokens.select(1, t + 1));
    }
    return loss / static_cast<double>(tokens.size(1) - 1);
  }
  static auto batch(int64_t n) { return std::tuple(torch::randint(9, {n, 4}, torch::kLong)); }
  nn::Embedding embed{9, 4};
  nn::GRUCell cell{4, 6};
  nn::Linear out{6, 9};
  Tensor first;
};

/// Every sample is compared with every other: values of [batch, batch] cross stages.
struct Contrastive : nn::Module {
  Contrastive() {
    nets::register_all(*this, "image", image, "text", text);
    scale = register_parameter("scale", torch::tensor(1.0, torch::get_default_dtype()));
  }
  Tensor forward(const Tensor& x, const Tensor& y) {
    const auto a = F::normalize(image(x)), b = F::normalize(text(y));
    const auto scores = a.matmul(b.t()) * scale.exp();
    const auto own = torch::arange(x.size(0), torch::kLong);
    return (F::cross_entropy(scores, own) + F::cross_entropy(scores.t(), own)) / 2;
  }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 4}).requires_grad_(), torch::randn({n, 3})); }
  nn::Linear image{4, 6}, text{3, 6};
  Tensor scale;
};

/// Experts, of which each sample takes two, and a load that is not linear in its mean over the batch.
struct Experts : nn::Module {
  Experts() {
    register_module("gate", gate);
    for (int i = 0; i < 3; ++i) experts->push_back(nn::Linear(4, 5));
    nets::register_all(*this, "experts", experts, "out", out);
  }
  Tensor forward(const Tensor& x, const Tensor& target) {
    const auto weights = torch::softmax(gate(x), -1);
    const auto [values, chosen] = weights.topk(2, -1);
    auto share = torch::zeros_like(weights).scatter(-1, chosen, values);
    share = share / share.sum(-1, true);
    std::vector<Tensor> results;
    for (const auto& expert : *experts) results.push_back(torch::tanh(expert->as<nn::Linear>()->forward(x)));
    const auto mixed = (torch::stack(results, 1) * share.unsqueeze(-1)).sum(1);
    const auto load = weights.mean(0);
    return F::mse_loss(out(mixed), target) + 3 * (load * load).sum();
  }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 4}), torch::randn({n, 2})); }
  nn::Linear gate{4, 3};
  nn::ModuleList experts;
  nn::Linear out{5, 2};
};

/// Buffers that follow parameters (a slow copy of a weight, a power iteration) and are read; one that follows samples.
struct SlowTeacher : nets::TwoLinears {
  SlowTeacher() : TwoLinears(4, 5, 3) {
    slow = register_buffer("slow", torch::zeros({5, 4}));
    direction = register_buffer("direction", torch::full({5}, 0.4));
    seen = register_buffer("seen", torch::zeros({5}));
    calls = register_buffer("calls", torch::zeros({}, torch::kLong));
  }
  Tensor forward(const Tensor& x, const Tensor& y) {
    Tensor along;
    {
      const torch::NoGradGuard no_grad;
      slow.mul_(0.9).add_(a->weight, 0.1);
      along = F::normalize(torch::mv(a->weight.t(), direction), F::NormalizeFuncOptions().dim(0));
      direction.copy_(F::normalize(torch::mv(a->weight, along), F::NormalizeFuncOptions().dim(0)));
      calls.add_(1);
    }
    const auto largest = torch::dot(direction.clone(), torch::mv(a->weight, along));
    const auto h = torch::tanh(torch::linear(x, a->weight / largest, a->bias));
    {
      const torch::NoGradGuard no_grad;
      seen.mul_(0.9).add_(h.mean(0), 0.1);
    }
    return F::cross_entropy(b(h), y) + F::mse_loss(h, torch::linear(x, slow).detach());
  }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 4}), labels(n, 3)); }
  Tensor slow, direction, seen, calls;
};

/// libtorch's own encoder with a mask that is a buffer, and a weight that other weights make.
struct EncoderModule : nn::Module {
  EncoderModule() {
    nets::register_all(*this, "embed", embed, "encoder", encoder, "maker", maker);
    code = register_parameter("code", torch::linspace(-1, 1, 3));
    mask = register_buffer("mask", torch::full({4, 4}, -1e9).triu(1));
  }
  Tensor forward(const Tensor& ids, const Tensor& y) {
    const auto h = encoder(embed(ids).transpose(0, 1), mask).transpose(0, 1);
    const auto head = torch::tanh(maker(code)).view({7, 8});
    return F::cross_entropy(torch::linear(h, head).transpose(1, 2), y);
  }
  static auto batch(int64_t n) {
    return std::tuple(torch::randint(7, {n, 4}, torch::kLong), torch::randint(7, {n, 4}, torch::kLong));
  }
  nn::Embedding embed{7, 8};
  nn::TransformerEncoder encoder{nn::TransformerEncoderOptions(
      nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(0.0).activation(torch::kGELU), 2)};
  nn::Linear maker{3, 56};
  Tensor code, mask;
};

/// The loss is one of several results.
struct LossAndMore : nets::Linears {
  LossAndMore() : Linears(4, {{"a", 6}, {"b", 5}}, torch::relu) {}
  std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& x, const Tensor& y) {
    const auto scores = Linears::forward(x);
    return {F::cross_entropy(scores, y), scores, (scores.argmax(1) == y).to(torch::get_default_dtype()).mean()};
  }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 4}), labels(n, 5)); }
};

}  // namespace zoo
