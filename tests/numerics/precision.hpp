#pragma once

#include <torch/torch.h>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <autopar/autopar.hpp>
#include <catch_shim.hpp>
#include <nets.hpp>

#include "fidelity.hpp"

/// Computing in 16 bits or TF32: models, what one process makes of them with the same setting and in fp64, and what a
/// rank has.
namespace precision_test {

namespace ap = autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using numerics::Snapshot;
using torch::Tensor;

/// bf16 or fp16 autocast of one process.
class AutocastScope {
 public:
  explicit AutocastScope(at::ScalarType type, c10::DeviceType device = at::kCPU) : device_(device) {
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_, type);
  }
  ~AutocastScope() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, false);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  c10::DeviceType device_;
};

/// How one process takes products and convolutions of float32 on GPUs.
class SinglePrecisionOfProcess {
 public:
  explicit SinglePrecisionOfProcess(at::Float32Precision precision) {
    for (auto& [op, before] : settings_) {
      before = at::globalContext().float32Precision(at::Float32Backend::CUDA, op);
      at::globalContext().setFloat32Precision(at::Float32Backend::CUDA, op, precision);
    }
  }
  ~SinglePrecisionOfProcess() {
    for (const auto& [op, before] : settings_)
      at::globalContext().setFloat32Precision(at::Float32Backend::CUDA, op, before);
  }
  SinglePrecisionOfProcess(const SinglePrecisionOfProcess&) = delete;
  SinglePrecisionOfProcess& operator=(const SinglePrecisionOfProcess&) = delete;

 private:
  std::array<std::pair<at::Float32Op, at::Float32Precision>, 2> settings_{
      {{at::Float32Op::MATMUL, at::Float32Precision::NONE}, {at::Float32Op::CONV, at::Float32Precision::NONE}}};
};

struct Tf32OfProcess : SinglePrecisionOfProcess {
  Tf32OfProcess() : SinglePrecisionOfProcess(at::Float32Precision::TF32) {}
};

/// libtorch runs convolutions in TF32 unless it is told not to.
struct IeeeOfProcess : SinglePrecisionOfProcess {
  IeeeOfProcess() : SinglePrecisionOfProcess(at::Float32Precision::IEEE) {}
};

struct Mlp : nets::CrossEntropy<nets::Sequence> {
  Mlp()
      : CrossEntropy(nn::Sequential{nn::Linear(64, 96), nn::ReLU(), nn::Linear(96, 96), nn::Tanh(), nn::Linear(96, 96),
                                    nn::GELU(), nn::Linear(96, 32)}) {}
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 64}), torch::randint(32, {n}, torch::kLong)); }
};

/// A loss whose gradients one rank's samples can drive out of range.
struct SumOfSquares : nets::Linears {
  using Linears::Linears;
  Tensor forward(const Tensor& x, const Tensor& target) {
    return F::mse_loss(Linears::forward(x), target, F::MSELossFuncOptions().reduction(torch::kSum)) / 4;
  }
};

struct ConvNet : nn::Module {
  ConvNet() { nets::register_all(*this, "conv1", conv1, "norm1", norm1, "conv2", conv2, "norm2", norm2, "last", last); }
  Tensor forward(const Tensor& x, const Tensor& y) {
    auto h = torch::relu(norm1(conv1(x)));
    h = torch::relu(norm2(conv2(F::max_pool2d(h, F::MaxPool2dFuncOptions(2)))));
    return F::cross_entropy(last(F::adaptive_avg_pool2d(h, F::AdaptiveAvgPool2dFuncOptions({2, 2})).flatten(1)), y);
  }
  static auto batch(int64_t n) {
    return std::tuple(torch::randn({n, 3, 12, 12}), torch::randint(10, {n}, torch::kLong));
  }
  // Without biases, whose gradients before a batch norm are zero but for rounding: nothing to compare.
  nn::Conv2d conv1{nn::Conv2dOptions(3, 16, 3).padding(1).bias(false)};
  nn::Conv2d conv2{nn::Conv2dOptions(16, 32, 3).padding(1).bias(false)};
  nn::BatchNorm2d norm1{16}, norm2{32};
  nn::Linear last{128, 10};
};

/// Attention, layer norms, and a table that the first and the last operators read.
struct Transformer : nn::Module {
  Transformer() {
    nets::register_all(*this, "table", table, "layers", layers);
    for (int i = 0; i < 2; ++i) {
      layers->push_back(
          nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(32, 4).dim_feedforward(64).dropout(0.0)));
    }
  }
  Tensor forward(const Tensor& ids, const Tensor& y) {
    auto h = table(ids).transpose(0, 1);
    for (const auto& layer : *layers) h = layer->as<nn::TransformerEncoderLayer>()->forward(h);
    return F::cross_entropy(F::linear(h.mean(0), table->weight), y);
  }
  static auto batch(int64_t n) {
    return std::tuple(torch::randint(40, {n, 8}, torch::kLong), torch::randint(40, {n}, torch::kLong));
  }
  nn::Embedding table{40, 32};
  nn::ModuleList layers;
};

struct Embedding : nets::Tabled {
  Embedding() : Tabled({30, 24}, 4, {{"a", 64}, {"b", 16}}) {}
  Tensor forward(const Tensor& ids, const Tensor& target) {
    return (Linears::forward(table(ids).flatten(1)) - target).abs().mean();
  }
  static auto batch(int64_t n) { return std::tuple(torch::randint(30, {n, 4}, torch::kLong), torch::randn({n, 16})); }
};

/// Results leave the model; the loss is the user's.
struct Scores : nets::Linears {
  Scores() : Linears(32, {{"a", 64}, {"b", 16}}, torch::relu) {}
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 32})); }
};

template <class Net>
std::shared_ptr<Net> made(uint64_t seed = 11) {
  return nets::made<Net>(seed);
}

template <class Args>
Args moved(const Args& args, at::ScalarType type, c10::Device device,
           at::MemoryFormat images = at::MemoryFormat::Contiguous) {
  auto tensors = ap::flatten(args).tensors;
  for (auto& tensor : tensors) {
    tensor = tensor.detach().to(device);
    if (tensor.is_floating_point()) tensor = tensor.to(type);
    if (tensor.dim() == 4) tensor = tensor.contiguous(images);
  }
  return ap::with_tensors(args, tensors);
}

inline double distance(const Tensor& a, const Tensor& b) {
  const autopar::parameters::PartAccess
      access;  // `a` may be what a rank has of a parameter, beside the same elements of `b`
  if (a.numel() == 0) return 0;
  return (a.detach().cpu().to(torch::kDouble) - b.detach().cpu().to(torch::kDouble)).abs().max().item<double>();
}

/// How a step is computed.
struct Way {
  std::vector<int64_t> local;
  ap::Options options;
  double clip = 0;  ///< 2-norm that gradients are clipped to; 0 = not
  std::string describe() const {
    std::ostringstream out;
    out << ap::option_text(options.precision) << ", " << local.size() << " ranks, " << options.stages
        << " stages, replicas";
    for (const int r : options.replicas) out << ' ' << r;
    out << ", " << options.microbatches << " micro-batches, " << ap::option_text(options.schedule) << ", zero "
        << options.zero << ", recompute " << ap::option_text(options.recompute) << ", clip " << clip;
    return out.str();
  }
};

/// As one process with parameters in fp32 that computes in a bf16 copy of its module.
template <class Net, class Args>
Snapshot one_process_in_bf16(const std::vector<Args>& calls, double clip, c10::Device device) {
  const auto net = made<Net>();
  for (auto& tensors : {net->parameters(), net->buffers()}) {  // Module::to() would convert counters, too
    for (const auto& tensor : tensors) {
      if (tensor.is_floating_point()) tensor.set_data(tensor.detach().to(torch::kBFloat16));
    }
  }
  net->to(device);
  std::vector<Tensor> gradients;
  Snapshot out;
  for (const auto& args : calls) {
    const auto given = moved(args, torch::kBFloat16, device);
    const auto loss = std::apply([&](const auto&... each) { return net->forward(each...); }, given);
    net->zero_grad();
    loss.backward();
    const auto parameters = net->parameters();
    gradients.resize(parameters.size());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto gradient = parameters[i].grad().to(torch::kFloat);
      gradients[i] = gradients[i].defined() ? gradients[i] + gradient : gradient;
    }
    out = {{"loss", loss.detach().to(torch::kFloat).cpu()}};
  }
  auto masters = net->parameters();
  for (std::size_t i = 0; i < masters.size(); ++i) {
    masters[i] = masters[i].detach().to(torch::kFloat);
    masters[i].mutable_grad() = gradients[i];
  }
  if (clip > 0) torch::nn::utils::clip_grad_norm_(masters, clip);
  const auto names = net->named_parameters();
  for (std::size_t i = 0; i < masters.size(); ++i)
    out.emplace_back("gradient of " + names[i].key(), masters[i].grad().cpu());
  for (const auto& item : net->named_buffers()) {
    const auto buffer = item.value().cpu();
    out.emplace_back("buffer " + item.key(), buffer.is_floating_point() ? buffer.to(torch::kFloat) : buffer);
  }
  return out;
}

/// In place of a precision: all in double precision.
inline constexpr std::optional<ap::Precision> kExactly = std::nullopt;

/// Loss of the last call, gradients of all calls' sum, and buffers, on the CPU.
/// @param images  how tensors of four dims lie: kernels of another layout round elsewhere
template <class Net, class Args>
Snapshot one_process(const std::vector<Args>& calls, std::optional<ap::Precision> precision, double clip = 0,
                     c10::Device device = at::kCPU, double scale = 1,
                     at::MemoryFormat images = at::MemoryFormat::Contiguous) {
  const auto net = made<Net>();
  const bool exact = precision == kExactly;
  const auto type = exact ? torch::kDouble : torch::kFloat;
  if (exact) net->to(type);
  net->to(device);
  for (auto& parameter : net->parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.detach().contiguous(images));
  }
  const auto run = [&](const Args& given) {
    return std::apply([&](const auto&... each) { return net->forward(each...); }, given);
  };
  Snapshot out;
  for (const auto& args : calls) {
    const auto given = moved(args, type, device, images);
    const auto loss = [&] {
      if (precision == ap::Precision::kTf32) {
        const Tf32OfProcess tf32;
        return run(given);
      }
      if (precision != ap::Precision::kBf16 && precision != ap::Precision::kFp16) return run(given);
      const AutocastScope autocast(precision == ap::Precision::kBf16 ? at::kBFloat16 : at::kHalf, device.type());
      return run(given);
    }();
    if (precision == ap::Precision::kTf32) {
      const Tf32OfProcess tf32;
      loss.backward();
    } else {
      (loss * scale).backward();
    }
    out = {{"loss", loss.detach().cpu()}};
  }
  for (const auto& parameter : net->parameters()) parameter.mutable_grad().div_(scale);
  if (clip > 0) torch::nn::utils::clip_grad_norm_(net->parameters(), clip);
  for (const auto& item : net->named_parameters())
    out.emplace_back("gradient of " + item.key(), item.value().grad().cpu());
  for (const auto& item : net->named_buffers()) out.emplace_back("buffer " + item.key(), item.value().cpu());
  return out;
}

/// An error beside the one that is allowed.
struct Comparison {
  std::string name;
  double error = 0, allowed = 0;
  bool same_type = true;  ///< as one process has
  [[nodiscard]] bool holds() const { return same_type && error <= allowed; }
};

/// What one process makes of all calls' samples.
struct Expected {
  Snapshot exact;
  std::vector<Snapshot> rounded;  ///< with the setting, in each way that a program may lay out its images
};

/// Every tensor of this rank after its calls, of which all but the last are under no_sync: its error to fp64 beside 1.5
/// times that of one process with the same setting. Collective.
/// @param luck  share of a tensor's largest element that one process is taken to err at least
template <class Net, class Args>
std::vector<Comparison> compare_rank(ap::World& world, const std::vector<Args>& calls, const Way& way,
                                     const Expected& want, double luck = 0) {
  ap::AutoParallel<Net> model(world, made<Net>(), way.options);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  model->attach(optimizer);
  Tensor loss;
  const auto step = [&](const Args& args) {
    loss = std::apply([&](const auto&... each) { return model(each...); },
                      numerics::local_args(args, {}, way.local, world.rank()));
    loss.backward();
  };
  const auto all = [&] {
    for (std::size_t k = 0; k + 1 < calls.size(); ++k) {
      const auto guard = model->no_sync();
      step(calls[k]);
    }
    step(calls.back());
  };
  all();
  for (int tries = 0; model->stats().skipped_steps > tries && tries < 8; ++tries) all();  // until the loss scale fits
  if (way.clip > 0) static_cast<void>(model->clip_grad_norm_(way.clip));

  std::vector<Comparison> out;
  const auto compare = [&](const std::string& name, const Tensor& got, const ap::ParameterShard& shard) {
    const auto exact = numerics::find(want.exact, name);
    double usual = luck * exact.abs().max().template item<double>();
    for (const auto& way_to_lay : want.rounded)
      usual = std::max(usual, distance(numerics::find(way_to_lay, name), exact));
    const bool defined = got.defined();
    out.push_back(
        {name, defined ? distance(got, numerics::held_part(exact, shard)) : std::numeric_limits<double>::infinity(),
         1.5 * usual, defined && got.scalar_type() == numerics::find(want.rounded.front(), name).scalar_type()});
  };
  compare("loss", loss, {{}, 0, 0, true});
  for (const auto& item : model->named_parameters()) {
    if (!model->owns(item.value())) continue;
    if (item.value().scalar_type() != torch::kFloat) out.push_back({item.key() + " is no longer float32", 1, 0, false});
    compare("gradient of " + item.key(), item.value().grad(), model->shard(item.value()));
  }
  for (const auto& item : model->named_buffers()) {
    if (model->owns(item.value())) compare("buffer " + item.key(), item.value(), {{}, 0, 0, true});
  }
  if (model->plan().precision != way.options.precision || model->plan().zero != std::max(0, way.options.zero)) {
    out.push_back({"the plan has precision " + ap::option_text(model->plan().precision) + " and ZeRO " +
                       std::to_string(model->plan().zero),
                   1, 0, false});
  }
  const auto sent = model->plan().buckets.reduce_dtype;
  if (way.options.reduce_dtype.value_or(sent) != sent) out.push_back({"gradients are sent otherwise", 1, 0, false});
  return out;
}

/// Autocast in slices rounds where autocast of the whole batch does, so its law holds for each tensor. What computes in
/// 16 bits throughout rounds elsewhere than a module in 16 bits: of two such errors one is larger by chance, and the
/// law holds on average.
/// @param by_chance  times that of one process that a tensor's error may be then
inline void check_law(const std::vector<Comparison>& compared, int rank, bool on_average, double by_chance = 2.5) {
  constexpr double kLaw = 1.5;
  double ratios = 0;
  int counted = 0;
  for (const auto& each : compared) {
    INFO(each.name << " on rank " << rank << ": error " << each.error << ", allowed " << each.allowed);
    CHECK(each.same_type);
    CHECK(each.error <= each.allowed * (on_average ? by_chance / kLaw : 1));
    if (each.allowed == 0) continue;
    ratios += each.error / each.allowed;
    ++counted;
  }
  CHECK(ratios <= counted);
}

}  // namespace precision_test
