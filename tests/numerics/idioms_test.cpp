#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <nets.hpp>

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"

// Programs as other people write them: what each does to samples is in operators that are seldom met elsewhere.
namespace idioms_test {

namespace ap = autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using numerics::Setup;
using torch::Tensor;
using torch::indexing::Slice;

constexpr std::uint64_t kSeed = 11;

/// Numbers that differ from element to element, the same in each run.
Tensor waves(std::vector<std::int64_t> sizes, double step) {
  std::int64_t count = 1;
  for (const auto size : sizes) count *= size;
  return (torch::arange(count, torch::kDouble) * step).sin().view(sizes);
}

Tensor kinds(std::vector<std::int64_t> sizes, std::int64_t classes) {
  std::int64_t count = 1;
  for (const auto size : sizes) count *= size;
  return (torch::arange(count, torch::kLong) * 7 + 3).remainder(classes).view(sizes);
}

const std::vector<std::vector<std::int64_t>> kTwoRanks{{3, 4}, {5, 2}};
const std::vector<std::vector<std::int64_t>> kThreeRanks{{3, 2, 4}, {1, 4, 3}};

std::vector<Setup> plans() {
  std::vector<Setup> all;
  all.push_back({{.stages = 2, .microbatches = 2, .replicas = {1, 1}}, kTwoRanks});
  all.push_back({{.stages = 1, .microbatches = 2, .replicas = {2}}, kTwoRanks});
  all.push_back({{.stages = 2, .microbatches = 2, .replicas = {2, 1}}, kThreeRanks});
  return all;
}

/// Trains under a plan on threads, and in one process.
template <class Net>
void train_as_one_process(const Setup& setup) {
  INFO(setup.describe());
  const auto make = [] { return std::make_shared<Net>(); };
  const auto reference = [&] {
    const std::lock_guard lock(numerics::generator_mutex());
    return numerics::run_reference<Net>(make, setup, kSeed);
  }();
  CHECK_NOTHROW(ap::loopback::run(static_cast<int>(setup.local.front().size()), [&](ap::World& world) {
    const auto net = nets::seeded(kSeed, make);
    ap::AutoParallel<Net> model(world, net, setup.options);
    numerics::check_rank<Net>(world, model, reference, setup, {});
  }));
}

template <class Net>
void trains_under_all_plans() {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  for (const auto& setup : plans()) train_as_one_process<Net>(setup);
}

/// Trains where one rank holds the whole batch, and says what mixes samples where several are asked for.
template <class Net>
void trains_whole(const std::string& operator_name) {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  train_as_one_process<Net>({{.stages = 2, .microbatches = 1, .replicas = {1, 1}}, kTwoRanks});
  const auto refused = [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, std::make_shared<Net>(),
                                ap::Options{.stages = 1, .microbatches = 1, .replicas = {2}});
    std::apply([&](const auto&... each) { model(each...); }, Net::batch(3));
  };
  CHECK_THROWS_WITH(ap::loopback::run(2, refused), Catch::Matchers::Contains(operator_name));
}

// ---------------------------------------------------------------- flows

/// A linear flow by triangular solves, coupling, and the logarithm of the determinant.
struct Flow : nn::Module {
  Flow() {
    lower = register_parameter("lower", torch::randn({4, 4}) * 0.3);
    diagonal = register_parameter("diagonal", torch::randn({4}) * 0.1);
    shift = register_parameter("shift", torch::randn({4}));
    register_module("net", net);
  }
  static std::tuple<Tensor> batch(std::int64_t n) { return {waves({n, 4}, 0.37)}; }
  Tensor forward(const Tensor& x) {
    const auto l = lower.tril(-1) + torch::diag_embed(diagonal.exp());
    auto z = torch::linalg_solve_triangular(l, (x - shift).t(), /*upper=*/false).t();
    const auto parts = z.chunk(2, 1);
    const auto s_t = net->forward(parts[0]).chunk(2, 1);
    const auto s = torch::tanh(s_t[0]);
    z = torch::cat({parts[0], parts[1] * s.exp() + s_t[1]}, 1);
    const auto log_det = s.sum(1) - diagonal.sum();
    return -(log_det - 0.5 * z.pow(2).sum(1)).mean();
  }
  Tensor lower, diagonal, shift;
  nn::Sequential net{nn::Linear(2, 8), nn::ReLU(), nn::Linear(8, 4)};
};
TEST_CASE("flow with triangular solves: trains under every plan", "[idioms]") { trains_under_all_plans<Flow>(); }

// ---------------------------------------------------------------- spectra

/// A Fourier neural operator: a few modes are multiplied by complex weights.
struct SpectralConv : nn::Module {
  SpectralConv() {
    real = register_parameter("real", torch::randn({3, 3, 4}) * 0.3);
    imaginary = register_parameter("imaginary", torch::randn({3, 3, 4}) * 0.3);
  }
  Tensor forward(const Tensor& x) {
    const auto spectrum = torch::fft_rfft(x);
    auto out = torch::zeros({x.size(0), 3, x.size(2) / 2 + 1}, spectrum.options());
    out.index_put_({Slice(), Slice(), Slice(0, 4)},
                   torch::einsum("bix,iox->box",
                                 {spectrum.index({Slice(), Slice(), Slice(0, 4)}), torch::complex(real, imaginary)}));
    return torch::fft_irfft(out, x.size(2));
  }
  Tensor real, imaginary;
};

struct NeuralOperator : nn::Module {
  NeuralOperator() {
    nets::register_all(*this, "lift", lift, "spectral", spectral, "local", local, "project", project);
  }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) { return {waves({n, 1, 12}, 0.31), waves({n, 1, 12}, 0.17)}; }
  Tensor forward(const Tensor& x, const Tensor& y) {
    auto h = lift(x);
    h = torch::gelu(spectral->forward(h) + local(h));
    return F::mse_loss(project(h), y);
  }
  nn::Conv1d lift{nn::Conv1dOptions(1, 3, 1)};
  std::shared_ptr<SpectralConv> spectral = std::make_shared<SpectralConv>();
  nn::Conv1d local{nn::Conv1dOptions(3, 3, 1)}, project{nn::Conv1dOptions(3, 1, 1)};
};
TEST_CASE("Fourier neural operator: trains under every plan", "[idioms]") { trains_under_all_plans<NeuralOperator>(); }

/// A front end of short-time spectra, and back to a signal.
struct Denoiser : nn::Module {
  Denoiser() {
    window = register_buffer("window", torch::hann_window(8));
    register_module("mask", mask);
  }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) { return {waves({n, 24}, 0.9), waves({n, 24}, 0.23)}; }
  Tensor forward(const Tensor& x, const Tensor& y) {
    const auto frames = torch::stft(x, 8, 4, 8, window, true, "reflect", false, true, true);
    const auto loudness = torch::log1p(torch::abs(frames)).transpose(1, 2);
    const auto kept = torch::sigmoid(mask(loudness)).transpose(1, 2);
    const auto clean = torch::istft(frames * kept, 8, 4, 8, window, true, false, true, x.size(1));
    return F::l1_loss(clean, y) +
           torch::abs(torch::stft(clean, 8, 4, 8, window, true, "reflect", false, true, true)).mean();
  }
  Tensor window;
  nn::Linear mask{5, 5};
};
TEST_CASE("STFT denoiser: trains under every plan", "[idioms]") { trains_under_all_plans<Denoiser>(); }

// ---------------------------------------------------------------- points

/// Points, each with features of its nearest neighbours.
struct PointNet : nn::Module {
  PointNet() { nets::register_all(*this, "edge", edge, "head", head); }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) { return {waves({n, 7, 3}, 0.71), kinds({n}, 4)}; }
  Tensor forward(const Tensor& points, const Tensor& y) {
    const auto nearest = std::get<1>(torch::cdist(points, points).topk(3, -1, /*largest=*/false));
    const auto index = nearest.unsqueeze(-1).expand({-1, -1, -1, 3});
    const auto all = points.unsqueeze(1).expand({-1, points.size(1), -1, -1});
    const auto neighbours = torch::gather(all, 2, index);
    const auto centre = points.unsqueeze(2).expand_as(neighbours);
    auto h = torch::relu(edge(torch::cat({centre, neighbours - centre}, -1)));
    h = std::get<0>(h.max(2));
    return F::cross_entropy(head(h.amax(1)), y);
  }
  nn::Linear edge{6, 8}, head{8, 4};
};
TEST_CASE("point network with neighbours: trains under every plan", "[idioms]") { trains_under_all_plans<PointNet>(); }

/// The same picks with neighbours numbered through the whole batch, as the authors of DGCNN wrote it.
struct NumberedPoints : nn::Module {
  NumberedPoints() { register_module("edge", edge); }
  static std::tuple<Tensor> batch(std::int64_t n) { return {waves({n, 5, 3}, 0.71)}; }
  Tensor forward(const Tensor& points) {
    const auto b = points.size(0), m = points.size(1);
    const auto nearest = std::get<1>(torch::cdist(points, points).topk(2, -1, false));
    const auto numbered = (nearest + torch::arange(b).view({-1, 1, 1}) * m).view({-1});
    const auto neighbours = points.reshape({b * m, -1}).index({numbered}).view({b, m, 2, 3});
    return edge(neighbours).tanh().mean();
  }
  nn::Linear edge{3, 4};
};
TEST_CASE("neighbours indexed across the batch: need an unsplit batch", "[idioms]") {
  trains_whole<NumberedPoints>("aten::mul");
}

// ---------------------------------------------------------------- routing, graphs, detection

/// Capsules with routing by agreement.
struct Capsules : nn::Module {
  Capsules() { weight = register_parameter("weight", torch::randn({3, 5, 4, 2}) * 0.3); }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) { return {waves({n, 5, 2}, 0.53), kinds({n}, 3)}; }
  static Tensor squash(const Tensor& x) {
    const auto square = x.pow(2).sum(-1, true);
    return square / (1 + square) * x / (square + 1e-8).sqrt();
  }
  Tensor forward(const Tensor& x, const Tensor& y) {
    const auto votes = torch::matmul(weight.unsqueeze(0), x.view({-1, 1, 5, 2, 1})).squeeze(-1);  // [n, 3, 5, 4]
    auto logits = torch::zeros({x.size(0), 3, 5});
    Tensor out;
    for (int k = 0; k < 3; ++k) {
      const auto route = logits.softmax(1).unsqueeze(-1);
      out = squash((route * votes).sum(2));
      if (k < 2) logits = logits + (votes * out.unsqueeze(2)).sum(-1);
    }
    const auto length = out.norm(2, -1);
    const auto present = torch::one_hot(y, 3).to(torch::kDouble);
    return (present * torch::relu(0.9 - length).pow(2) + 0.5 * (1 - present) * torch::relu(length - 0.1).pow(2))
        .sum(1)
        .mean();
  }
  Tensor weight;
};
TEST_CASE("capsules with routing: train under every plan", "[idioms]") { trains_under_all_plans<Capsules>(); }

/// A graph of fixed edges, the same for all samples.
struct GraphNet : nn::Module {
  GraphNet() {
    from = register_buffer("from", torch::tensor({0, 1, 2, 3, 4, 0, 2}));
    to = register_buffer("to", torch::tensor({1, 2, 3, 4, 0, 2, 0}));
    nets::register_all(*this, "message", message, "update", update);
  }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) { return {waves({n, 5, 3}, 0.41), waves({n}, 0.3)}; }
  Tensor forward(const Tensor& nodes, const Tensor& y) {
    auto h = nodes;
    for (int k = 0; k < 2; ++k) {
      const auto sent = torch::relu(message(torch::cat({h.index_select(1, from), h.index_select(1, to)}, -1)));
      const auto got = torch::zeros_like(h).index_add(1, to, sent);
      h = torch::tanh(update(torch::cat({h, got}, -1)));
    }
    return F::mse_loss(h.mean(std::vector<std::int64_t>{1, 2}), y);
  }
  Tensor from, to;
  nn::Linear message{6, 3}, update{6, 3};
};
TEST_CASE("graph message passing: trains under every plan", "[idioms]") { trains_under_all_plans<GraphNet>(); }

/// A detector without suppression of overlaps: masks say which cells have an object.
struct Detector : nn::Module {
  Detector() { register_module("head", head); }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) {
    return {waves({n, 3, 6, 6}, 0.19), waves({n, 36, 4}, 0.57)};
  }
  Tensor forward(const Tensor& images, const Tensor& boxes) {
    const auto out = head(images).flatten(2).transpose(1, 2);
    const auto is_object = boxes.select(2, 0) > 0.3;
    auto target = torch::zeros_like(is_object, torch::kDouble);
    target.index_put_({is_object}, 1.0);
    auto weight = torch::full_like(target, 0.5);
    weight.masked_fill_(is_object, 5.0);
    const auto score = F::binary_cross_entropy_with_logits(
        out.select(2, 0), target, F::BinaryCrossEntropyWithLogitsFuncOptions().weight(weight).reduction(torch::kSum));
    const auto distance =
        F::smooth_l1_loss(out.slice(2, 1, 5), boxes, F::SmoothL1LossFuncOptions(torch::kNone)).sum(-1);
    const auto found = is_object.sum().clamp_min(1);
    return (score + (distance * is_object).sum()) / found;
  }
  nn::Conv2d head{nn::Conv2dOptions(3, 5, 3).padding(1)};
};
TEST_CASE("masked detection loss: trains under every plan", "[idioms]") { trains_under_all_plans<Detector>(); }

// ---------------------------------------------------------------- codebooks, losses of losses

/// A vector-quantised autoencoder whose codes follow means of what they stand for, as the authors of VQ-VAE-2 wrote it:
/// no gradient, three buffers, the last of which is no linear function of sums over the batch.
struct Quantiser : nn::Module {
  Quantiser() {
    codes = register_buffer("codes", waves({6, 3}, 0.77));
    counts = register_buffer("counts", torch::ones({6}));
    sums = register_buffer("sums", codes.clone());
    nets::register_all(*this, "encode", encode, "decode", decode);
  }
  static std::tuple<Tensor> batch(std::int64_t n) { return {waves({n, 4, 8}, 0.39)}; }
  Tensor forward(const Tensor& x) {
    const auto z = encode(x).transpose(1, 2);
    const auto flat = z.reshape({-1, 3});
    const auto distances = flat.pow(2).sum(1, true) - 2 * torch::matmul(flat, codes.t()) + codes.pow(2).sum(1);
    const auto nearest = distances.argmin(1);
    const auto quantised = torch::embedding(codes, nearest).view_as(z);
    if (is_training()) follow(flat.detach(), torch::one_hot(nearest, 6).to(flat.scalar_type()));
    const auto commitment = F::mse_loss(z, quantised.detach());
    const auto straight = z + (quantised - z).detach();
    return F::mse_loss(decode(straight.transpose(1, 2)), x) + 0.25 * commitment;
  }
  void follow(const Tensor& flat, const Tensor& hits) {
    const torch::NoGradGuard no_grad;
    counts.mul_(0.9).add_(hits.sum(0), 0.1);
    sums.mul_(0.9).add_(torch::matmul(hits.t(), flat), 0.1);
    const auto total = counts.sum();
    const auto smoothed = (counts + 1e-5) / (total + 6e-5) * total;
    codes.copy_(sums / smoothed.unsqueeze(1));
  }
  Tensor codes, counts, sums;
  nn::Conv1d encode{nn::Conv1dOptions(4, 3, 1)}, decode{nn::Conv1dOptions(3, 4, 1)};
};
TEST_CASE("moving-average codebook: trains under every plan", "[idioms]") { trains_under_all_plans<Quantiser>(); }

/// Two losses, each under a root, one weighted by a buffer.
struct WeightedRoots : nn::Module {
  WeightedRoots() {
    scale = register_buffer("scale", torch::full({}, 1.3));
    register_module("head", head);
  }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) { return {waves({n, 4}, 0.53), waves({n, 2}, 0.31)}; }
  Tensor forward(const Tensor& x, const Tensor& y) {
    const auto out = head(x);
    return F::mse_loss(out, y).sqrt() + F::l1_loss(out, y).sqrt() * scale;
  }
  Tensor scale;
  nn::Linear head{4, 2};
};
TEST_CASE("root of a loss times a buffer: trains under every plan", "[idioms]") {
  trains_under_all_plans<WeightedRoots>();
}

/// A root that is weighted by a parameter, which nothing else reads.
struct LearnedRoot : nn::Module {
  LearnedRoot() {
    weight = register_parameter("weight", torch::full({}, 0.7));
    register_module("head", head);
  }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) { return {waves({n, 4}, 0.53), waves({n, 2}, 0.31)}; }
  Tensor forward(const Tensor& x, const Tensor& y) { return F::mse_loss(head(x), y).sqrt() * weight; }
  Tensor weight;
  nn::Linear head{4, 2};
};
TEST_CASE("root of a loss times a parameter: needs an unsplit batch", "[idioms]") {
  trains_whole<LearnedRoot>("aten::");
}

// ---------------------------------------------------------------- weights of samples, contrasts

/// Convolutions with weights of each sample's own, as StyleGAN2 writes them.
struct Modulated : nn::Module {
  Modulated() {
    weight = register_parameter("weight", torch::randn({4, 2, 3, 3}) * 0.3);
    register_module("style", style);
  }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) { return {waves({n, 2, 6, 6}, 0.19), waves({n, 3}, 0.61)}; }
  Tensor forward(const Tensor& x, const Tensor& w) {
    const auto b = x.size(0);
    auto weights = weight.unsqueeze(0) * style(w).view({b, 1, 2, 1, 1});
    weights = weights * torch::rsqrt(weights.pow(2).sum(std::vector<std::int64_t>{2, 3, 4}, true) + 1e-8);
    const auto y = torch::conv2d(x.reshape({1, b * 2, 6, 6}), weights.view({b * 4, 2, 3, 3}), {}, 1, 1, 1, b);
    return y.view({b, 4, 6, 6}).pow(2).mean();
  }
  Tensor weight;
  nn::Linear style{3, 2};
};
TEST_CASE("per-sample convolution weights: train under every plan", "[idioms]") { trains_under_all_plans<Modulated>(); }

/// Every sample against every other: only the whole batch is right.
struct Contrast : nn::Module {
  Contrast() { register_module("head", head); }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) { return {waves({n, 5}, 0.43), waves({n, 5}, 0.47)}; }
  Tensor forward(const Tensor& a, const Tensor& b) {
    const auto x = F::normalize(head(a)), y = F::normalize(head(b));
    const auto scores = torch::mm(x, y.t()) / 0.5;
    return (torch::logsumexp(scores, 1) - scores.diagonal()).mean();
  }
  nn::Linear head{5, 3};
};
TEST_CASE("contrastive loss: needs an unsplit batch", "[idioms]") { trains_whole<Contrast>("mm"); }

}  // namespace idioms_test
