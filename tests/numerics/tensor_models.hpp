#pragma once

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <autopar/autopar.hpp>
#include <nets.hpp>

#include "fidelity.hpp"

// Programs as people write them, none of which knows of tensor shards.
namespace tensor_test {

namespace ap = autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using numerics::Setup;
using torch::Tensor;

/// A gated layer, a plain pair and a residual in place.
struct FeedForward : nn::Module {
  nn::LayerNorm norm{nn::LayerNormOptions({6})};
  nn::Linear up{6, 10}, down{10, 6}, gate_and_up{6, 16}, out{nn::LinearOptions(8, 6).bias(false)};
  FeedForward() {
    nets::register_all(*this, "norm", norm, "up", up, "down", down, "gate_and_up", gate_and_up, "out", out);
  }
  Tensor forward(Tensor x, const Tensor& y) {
    auto h = down(torch::gelu(up(norm(x))));
    h += x;
    const auto halves = gate_and_up(h).chunk(2, -1);
    h = h + out(torch::silu(halves[0]) * halves[1]);
    return F::mse_loss(h, y);
  }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) { return {torch::randn({n, 3, 6}), torch::randn({n, 3, 6})}; }
};

/// A pair with a factor between its layers, which is whole on every shard and read by what they do in slices.
struct Scaled : nn::Module {
  nn::Linear up{6, 10}, down{10, 6};
  Tensor scale;
  Scaled() {
    nets::register_all(*this, "up", up, "down", down);
    scale = register_parameter("scale", torch::rand({1}) + 0.5);
  }
  Tensor forward(const Tensor& x, const Tensor& y) { return F::mse_loss(down(torch::gelu(up(x)) * scale), y); }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) { return {torch::randn({n, 6}), torch::randn({n, 6})}; }
};

/// Two pairs that read one value, as the parts of a layer that are computed side by side.
struct Parallel : nn::Module {
  nn::LayerNorm norm{nn::LayerNormOptions({6})};
  nn::Linear up{6, 12}, down{12, 6}, in{6, 16}, out{16, 6};
  Parallel() { nets::register_all(*this, "norm", norm, "up", up, "down", down, "in", in, "out", out); }
  Tensor forward(const Tensor& x, const Tensor& y) {
    const auto h = norm(x);
    const auto first = down(torch::tanh(up(h)));
    const auto second = out(torch::gelu(in(h)));
    return F::mse_loss(x + first + second, y);
  }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) { return {torch::randn({n, 3, 6}), torch::randn({n, 3, 6})}; }
};

/// Several pairs, of which some lie whole in each of two stages wherever these are cut.
struct Deep : nn::Module {
  std::vector<nn::Linear> layers;
  Deep() {
    for (int i = 0; i < 8; ++i) {
      layers.push_back(
          register_module("layer" + std::to_string(i), i % 2 == 0 ? nn::Linear(6, 12) : nn::Linear(12, 6)));
    }
  }
  Tensor forward(Tensor x, const Tensor& y) {
    for (std::size_t i = 0; i < layers.size(); i += 2) x = x + layers[i + 1](torch::tanh(layers[i](x)));
    return F::mse_loss(x, y);
  }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) { return {torch::randn({n, 6}), torch::randn({n, 6})}; }
};

/// A language model: fused projections, causal attention, a table that the first and the last operators read.
struct Gpt : nn::Module {
  static constexpr int kHeads = 4, kWidth = 8, kWords = 11, kTime = 5, kMostShards = kHeads;
  nn::Embedding words{kWords, kWidth}, places{kTime, kWidth};
  nn::LayerNorm first{nn::LayerNormOptions({kWidth})}, second{nn::LayerNormOptions({kWidth})},
      last{nn::LayerNormOptions({kWidth})};
  nn::Linear qkv{kWidth, 3 * kWidth}, proj{kWidth, kWidth}, fc{kWidth, 4 * kWidth}, back{4 * kWidth, kWidth};
  Gpt() {
    nets::register_all(*this, "words", words, "places", places, "first", first, "qkv", qkv, "proj", proj, "second",
                       second, "fc", fc, "back", back, "last", last);
  }
  Tensor attention(const Tensor& x) {
    const auto b = x.size(0), t = x.size(1);
    auto parts = qkv(x).view({b, t, 3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4}).unbind(0);
    const auto mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    return proj(mixed.transpose(1, 2).reshape({b, t, kWidth}));
  }
  Tensor forward(const Tensor& tokens, const Tensor& next) {
    auto x = words(tokens) + places(torch::arange(tokens.size(1)));
    x = x + attention(first(x));
    x = x + back(torch::gelu(fc(second(x)), "tanh"));
    const auto logits = torch::matmul(last(x), words->weight.t());
    return F::cross_entropy(logits.view({-1, kWords}), next.reshape({-1}));
  }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) {
    return {torch::randint(kWords, {n, kTime}), torch::randint(kWords, {n, kTime})};
  }
};

/// So many words that shards get whole packs of them, and unequal numbers.
struct ManyWords : nn::Module {
  static constexpr int kWords = 8198, kInner = 21, kWidth = 6, kTime = 3, kMostShards = 4;
  nn::Embedding words{kWords, kWidth};
  nn::Linear fc{kWidth, kInner}, back{kInner, kWidth}, head{kWidth, kWords};
  ManyWords() { nets::register_all(*this, "words", words, "fc", fc, "back", back, "head", head); }
  Tensor forward(const Tensor& tokens, const Tensor& next) {
    auto x = words(tokens);
    x = x + back(torch::relu(fc(x)));
    return F::cross_entropy(head(x).view({-1, kWords}), next.reshape({-1}));
  }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) {
    return {torch::randint(kWords, {n, kTime}), torch::randint(kWords, {n, kTime})};
  }
};

/// Blocks with a root-mean-square norm written out, time first or the samples' rows in one dim.
struct Blocks : nn::Module {
  static constexpr int kWidth = 6, kTime = 3;
  std::vector<nn::Linear> ups, downs;
  std::vector<Tensor> scales;
  Blocks() {
    for (int i = 0; i < 4; ++i) {
      ups.push_back(register_module("up" + std::to_string(i), nn::Linear(kWidth, 20)));
      downs.push_back(register_module("down" + std::to_string(i), nn::Linear(10, kWidth)));
      scales.push_back(register_parameter("scale" + std::to_string(i), torch::rand({kWidth}) + 0.5));
    }
  }
  static Tensor normed(const Tensor& x, const Tensor& scale) {
    return x * torch::rsqrt(x.pow(2).mean(-1, true) + 1e-6) * scale;
  }
  Tensor forward(const Tensor& x, const Tensor& y) {
    auto h = x.transpose(0, 1);
    for (std::size_t i = 0; i < ups.size(); ++i) {
      if (i == 2) h = h.transpose(0, 1).reshape({-1, kWidth});
      const auto halves = ups[i](normed(h, scales[i])).chunk(2, -1);
      h = h + torch::dropout(downs[i](torch::silu(halves[0]) * halves[1]), 0.5, /*train=*/false);
    }
    return F::mse_loss(h.view_as(y), y);
  }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) {
    return {torch::randn({n, kTime, kWidth}), torch::randn({n, kTime, kWidth})};
  }
};

/// libtorch's own layers, time first, with a mask; loss outside.
struct Encoder : nn::Module {
  nn::MultiheadAttention attention{nn::MultiheadAttentionOptions(8, 4)};
  nn::Linear up{nullptr}, down{nullptr};
  Encoder() {
    register_module("attention", attention);
    up = register_module("up", nn::Linear(8, 12));
    down = register_module("down", nn::Linear(12, 8));
  }
  Tensor forward(const Tensor& x) {
    const auto in = x.transpose(0, 1);
    const auto mixed = std::get<0>(attention(in, in, in));
    return down(torch::relu(up(in + mixed))).transpose(0, 1);
  }
  static std::tuple<Tensor> batch(std::int64_t n) { return {torch::randn({n, 4, 8}).requires_grad_()}; }
};

/// Layers of their own for queries, keys and values, scores written out with a bias for each head.
struct Separate : nn::Module {
  nn::Linear q{nullptr}, k{nullptr}, v{nullptr}, o{nullptr};
  Tensor bias;
  Separate() {
    for (auto* layer : {&q, &k, &v, &o}) *layer = nn::Linear(8, 8);
    nets::register_all(*this, "q", q, "k", k, "v", v, "o", o);
    bias = register_parameter("bias", torch::randn({4, 1, 5}));
  }
  Tensor heads(const Tensor& x) { return x.view({x.size(0), x.size(1), 4, 2}).transpose(1, 2); }
  Tensor forward(const Tensor& x, const Tensor& y) {
    const auto scores = torch::matmul(heads(q(x)), heads(k(x)).transpose(-2, -1)) / std::sqrt(2.0) + bias;
    const auto mixed = torch::einsum("bhij,bhjd->bhid", {torch::softmax(scores, -1), heads(v(x))});
    return F::mse_loss(o(mixed.transpose(1, 2).contiguous().view_as(x)), y, F::MSELossFuncOptions(torch::kSum));
  }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) { return {torch::randn({n, 5, 8}), torch::randn({n, 5, 8})}; }
};

/// Grouped-query attention with queries, keys and values of one layer: these are not as many as those.
struct Grouped : nn::Module {
  static constexpr int kWidth = 8, kQueries = 4, kKeys = 2, kSize = 2, kMostShards = kKeys;
  std::vector<std::int64_t> sizes{kQueries * kSize, kKeys* kSize, kKeys* kSize};
  nn::Linear qkv{kWidth, (kQueries + 2 * kKeys) * kSize}, o{kQueries * kSize, kWidth};
  Grouped() { nets::register_all(*this, "qkv", qkv, "o", o); }
  Tensor forward(const Tensor& x, const Tensor& y) {
    auto parts = qkv(x).split_with_sizes(sizes, -1);
    for (auto& part : parts) part = part.view({x.size(0), x.size(1), -1, kSize}).transpose(1, 2);
    const auto mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true,
                                                        std::nullopt, /*enable_gqa=*/true);
    return F::mse_loss(x + o(mixed.transpose(1, 2).flatten(2)), y);
  }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) { return {torch::randn({n, 5, 8}), torch::randn({n, 5, 8})}; }
};

/// A convolutional network with a head of ten classes, some of which count more, some not at all.
struct Classifier : nn::Module {
  nn::Conv2d conv{nn::Conv2dOptions(2, 4, 3).padding(1)};
  nn::BatchNorm2d norm{4};
  nn::Linear head{4, 10};
  Tensor weight;
  Classifier() {
    nets::register_all(*this, "conv", conv, "norm", norm, "head", head);
    weight = register_buffer("weight", torch::rand({10}) + 0.5);
  }
  Tensor forward(const Tensor& x, const Tensor& y) {
    const auto h = torch::relu(norm(conv(x))).mean({2, 3});
    return F::cross_entropy(head(h), y,
                            F::CrossEntropyFuncOptions().weight(weight).ignore_index(3).label_smoothing(0.1));
  }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) {
    return {torch::randn({n, 2, 4, 4}), torch::randint(10, {n})};
  }
};

/// Layers behind norms, none of which is part of a pair.
struct Singles : nets::Linears {
  static constexpr int kWidth = 10, kTime = 4;
  nn::LayerNorm norm{nn::LayerNormOptions({kWidth})};
  Singles() : Linears(kWidth, nets::repeated("layer", 3, kWidth)) { register_module("norm", norm); }
  Tensor forward(Tensor x, const Tensor& y) {
    for (auto& layer : layers) x = x + torch::softmax(layer(norm(x)), -1);
    return F::mse_loss(x, y);
  }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) {
    return {torch::randn({n, kTime, kWidth}), torch::randn({n, kTime, kWidth})};
  }
};

struct Seen {
  int slices = 0;          ///< parameters that a rank has a slice of
  bool by_tokens = false;  ///< what lies between the shards' parts is cut by tokens
};

/// Trains on this rank with so many tensor shards a replica, and compares with one process.
/// @param make  the module
/// @return what this rank saw
template <class Net, class Make>
Seen check_on(ap::World& world, const Make& make, const numerics::Reference<decltype(Net::batch(1))>& reference,
              const Setup& setup, std::uint64_t seed, numerics::Traits traits = {}) {
  const auto net = nets::seeded(seed, make);
  ap::AutoParallel<Net> model(world, net, setup.options);
  numerics::check_rank<Net>(world, model, reference, setup, traits);
  bool all_share = setup.options.zero > 0;
  for (const auto& stage : model->plan().stages) {
    if (stage.mesh.tensor() != setup.options.tensor_parallel) throw numerics::Failure("a stage has other shards");
    all_share = all_share && stage.mesh.replicas() > 1;
  }
  if (model->plan().sequence_parallel && setup.options.sequence_parallel == ap::Switch::kOff)
    throw numerics::Failure("what lies between the shards' parts is cut by tokens");
  Seen seen{0, model->plan().sequence_parallel};
  for (const auto& parameter : model->parameters()) {
    if (!model->owns(parameter) || model->shard(parameter).dim < 0) continue;
    ++seen.slices;
    if (all_share && !model->shard(parameter).of_slice) throw numerics::Failure("replicas have a slice each");
  }
  return seen;
}

template <class Net>
Seen check_on(ap::World& world, const numerics::Reference<decltype(Net::batch(1))>& reference, const Setup& setup,
              std::uint64_t seed, numerics::Traits traits = {}) {
  return check_on<Net>(
      world, [] { return std::make_shared<Net>(); }, reference, setup, seed, traits);
}

/// Two steps, of which the second has other samples, on these shards of each replica of each stage.
inline Setup setup_of(int shards, const std::vector<int>& replicas, int microbatches, Setup setup = {}) {
  int ranks = 0;
  for (const int r : replicas) ranks += r * shards;
  setup.options.tensor_parallel = shards;
  if (setup.options.sequence_parallel == ap::Switch::kAuto) setup.options.sequence_parallel = ap::Switch::kOff;
  setup.options.stages = static_cast<int>(replicas.size());
  setup.options.replicas = replicas;
  setup.options.microbatches = microbatches;
  setup.local.assign(2, std::vector<std::int64_t>(static_cast<std::size_t>(ranks), 2));
  setup.local.back().front() = 4;
  return setup;
}

}  // namespace tensor_test
