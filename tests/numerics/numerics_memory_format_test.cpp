#include <torch/torch.h>

#include <ATen/record_function.h>

#include <catch_shim.hpp>
#include <nets.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"
#include "precision.hpp"
#include "tied_net.hpp"

#include "capture/trace/fake_tensor.hpp"

// Channels-last arguments and weights stay so wherever a plan sends them: kernels get what they get in one process.
namespace numerics_memory_format_test {

namespace ap = autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using numerics::check_close;
using tied_net::check_ranks;
using torch::Tensor;

constexpr double kTolerance = 1e-5;
constexpr int64_t kSamples = 4;  // of each rank

/// Kernels that take and give channels-last data as they are; the first thing that each gives is data, or their
/// gradient.
const std::set<std::string> kWatched{"aten::convolution",
                                     "aten::convolution_backward",
                                     "aten::native_batch_norm",
                                     "aten::native_batch_norm_backward",
                                     "aten::max_pool2d_with_indices",
                                     "aten::max_pool2d_with_indices_backward",
                                     "aten::upsample_nearest2d"};

/// While it lives: calls of watched kernels, and those whose data are in another format.
class FormatWatch {
 public:
  explicit FormatWatch(at::MemoryFormat format) : format_(format) {
    current() = this;
    handle_ =
        at::addGlobalCallback(at::RecordFunctionCallback(&FormatWatch::begin, &FormatWatch::end).needsOutputs(true));
  }
  ~FormatWatch() {
    at::removeCallback(handle_);
    current() = nullptr;
  }
  FormatWatch(const FormatWatch&) = delete;
  FormatWatch& operator=(const FormatWatch&) = delete;

  [[nodiscard]] std::set<std::string> kernels() {
    const std::lock_guard lock(mutex_);
    std::set<std::string> names;
    for (const auto& [name, calls] : calls_) names.insert(name);
    return names;
  }
  [[nodiscard]] std::string others() {
    const std::lock_guard lock(mutex_);
    return others_;
  }

 private:
  static FormatWatch*& current() {
    static FormatWatch* watch = nullptr;
    return watch;
  }
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction&) { return nullptr; }
  static void end(const at::RecordFunction& call, at::ObserverContext*) {
    if (current() != nullptr && kWatched.count(call.name()) > 0 && !call.outputs().empty()) current()->note(call);
  }
  void note(const at::RecordFunction& call) {
    const auto& first = call.outputs().front();
    if (!first.isTensor() || !first.toTensor().defined()) return;
    const auto& tensor = first.toTensor();
    if (tensor.dim() != 4 || tensor.is_meta() || !tensor.has_storage() || ap::trace::is_fake(tensor)) return;
    const std::lock_guard lock(mutex_);
    ++calls_[call.name()];
    if (tensor.is_contiguous(format_)) return;
    std::ostringstream text;
    text << call.name() << ' ' << tensor.sizes() << " strides " << tensor.strides() << "; ";
    others_ += text.str();
  }

  at::MemoryFormat format_;
  at::CallbackHandle handle_;
  std::mutex mutex_;
  std::map<std::string, int> calls_;
  std::string others_;
};

struct Block : nn::Module {
  Block(int64_t in, int64_t out, int64_t stride, bool with_norms)
      : conv1(nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false)),
        conv2(nn::Conv2dOptions(out, out, 3).padding(1)),
        shortcut(nn::Conv2dOptions(in, out, 1).stride(stride)),
        norm(out),
        norms(with_norms) {
    nets::register_all(*this, "conv1", conv1, "conv2", conv2, "shortcut", shortcut);
    if (with_norms) register_module("norm", norm);
  }
  Tensor forward(const Tensor& x) {
    auto y = conv1(x);
    if (norms) y = norm(y);
    y = conv2(y.relu_());
    y += shortcut(x);
    return torch::relu(y);
  }
  nn::Conv2d conv1, conv2, shortcut;
  nn::BatchNorm2d norm;
  bool norms;
};

/// A residual network with a loss.
struct ResNet : nn::Module {
  explicit ResNet(bool norms = true) {
    register_module("stem", stem);
    blocks = register_module("blocks",
                             nn::Sequential(Block(8, 8, 1, norms), Block(8, 16, 2, norms), Block(16, 16, 1, norms)));
    register_module("out", out);
  }
  Tensor forward(const Tensor& x, const Tensor& y) {
    auto h = F::max_pool2d(torch::relu(stem(x)), F::MaxPool2dFuncOptions(2));
    h = F::adaptive_avg_pool2d(blocks->forward(h), F::AdaptiveAvgPool2dFuncOptions(1));
    return F::cross_entropy(out(h.flatten(1)), y);
  }
  nn::Conv2d stem{nn::Conv2dOptions(3, 8, 3).padding(1)};
  nn::Sequential blocks{nullptr};
  nn::Linear out{16, 5};
};

/// An image out, of which each sample is a result; skips between its halves.
struct UNet : nn::Module {
  UNet() { nets::register_all(*this, "down", down, "deep", deep, "up", up, "out", out); }
  Tensor forward(const Tensor& x) {
    const auto a = torch::relu(down(x));
    const auto b = torch::silu(deep(F::max_pool2d(a, F::MaxPool2dFuncOptions(2))));
    const auto wide =
        F::interpolate(b, F::InterpolateFuncOptions().scale_factor(std::vector<double>{2, 2}).mode(torch::kNearest));
    return out(torch::cat({a, torch::relu(up(b)), wide}, 1));
  }
  nn::Conv2d down{nn::Conv2dOptions(3, 8, 3).padding(1)}, deep{nn::Conv2dOptions(8, 8, 3).padding(1)};
  nn::ConvTranspose2d up{nn::ConvTranspose2dOptions(8, 8, 2).stride(2)};
  nn::Conv2d out{nn::Conv2dOptions(24, 2, 1)};
};

Tensor images(int64_t begin, int64_t end, at::MemoryFormat format) {
  return torch::linspace(-2, 2, 16 * 3 * 8 * 8)
      .mul(37)
      .sin()
      .view({16, 3, 8, 8})
      .slice(0, begin, end)
      .contiguous(format);
}
Tensor labels(int64_t begin, int64_t end) { return torch::arange(begin, end, torch::kLong).remainder(5); }

/// `module->to(channels-last)`, which C++ has not.
void to_format(nn::Module& module, at::MemoryFormat format) {
  for (auto& parameter : module.parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(format));
  }
}

template <class Net, class... Args>
std::shared_ptr<Net> made(at::MemoryFormat format, Args... args) {
  const std::lock_guard lock(numerics::generator_mutex());
  torch::manual_seed(3);
  auto net = std::make_shared<Net>(args...);
  to_format(*net, format);
  return net;
}

ap::Options plan(std::vector<int> replicas, int microbatches, int zero = 0,
                 ap::RecomputeOption recompute = ap::Recompute::kNever,
                 ap::ScheduleKind schedule = ap::ScheduleKind::kOneFOneB) {
  return {.stages = static_cast<int>(replicas.size()),
          .microbatches = microbatches,
          .zero = zero,
          .replicas = replicas,
          .schedule = schedule,
          .recompute = recompute};
}

const std::vector<ap::Options> kPlans{plan({1}, 1),
                                      plan({1}, 2),
                                      plan({1, 1}, 2),
                                      plan({1, 1, 1}, 4),
                                      plan({2}, 2),
                                      plan({2, 1}, 2),
                                      plan({2}, 1, 1),
                                      plan({2}, 2, 2),
                                      plan({2}, 2, 3),
                                      plan({1, 1}, 2, 0, ap::Recompute::kAlways),
                                      plan({2}, 2, 3, ap::Recompute::kAlways),
                                      plan({1, 1}, 2, 0, ap::Recompute::kNever, ap::ScheduleKind::kZbH1)};

std::string describe(const ap::Options& options) { return numerics::Setup{.options = options, .local = {}}.describe(); }

template <class Model>
void require_equal_state(ap::World& world, Model& model, const numerics::Snapshot& want) {
  const auto state = model->gather_state();
  if (world.rank() != 0) return;
  for (const auto& item : state) {
    if (!item.value().is_floating_point() || item.key().find("running") != std::string::npos) continue;
    check_close(item.value(), numerics::find(want, item.key()), kTolerance, "at the end, " + item.key());
  }
}

TEST_CASE("channels-last ResNet: every kernel keeps the layout") {
  constexpr auto kFormat = at::MemoryFormat::ChannelsLast;
  torch::set_num_threads(1);
  for (const bool norms : {false, true}) {
    for (const auto& options : kPlans) {
      const int ranks = tied_net::ranks_of(options);
      INFO((norms ? "batch norms, " : "") << describe(options));
      const auto reference = made<ResNet>(kFormat, norms);
      torch::optim::SGD reference_optimizer(reference->parameters(), 0.05);
      for (int step = 0; step < 2; ++step) {
        reference_optimizer.zero_grad();
        reference->forward(images(0, ranks * kSamples, kFormat), labels(0, ranks * kSamples)).backward();
        reference_optimizer.step();
      }
      FormatWatch watch(kFormat);
      check_ranks(ranks, [&](ap::World& world) {
        ap::AutoParallel<ResNet> model(world, made<ResNet>(kFormat, norms), options);
        torch::optim::SGD optimizer(model->parameters(), 0.05);
        model->attach(optimizer);
        const auto begin = world.rank() * kSamples;
        for (int step = 0; step < 2; ++step) {
          optimizer.zero_grad();
          model(images(begin, begin + kSamples, kFormat), labels(begin, begin + kSamples)).backward();
          optimizer.step();
        }
        if (!norms) require_equal_state(world, model, numerics::copies_of(reference->named_parameters()));
      });
      CHECK(watch.others() == "");
      CHECK(watch.kernels().size() >= (norms ? 6 : 4));
    }
  }
}

TEST_CASE("channels-last images: results and gradients keep the layout") {
  torch::set_num_threads(1);
  for (const auto format : {at::MemoryFormat::ChannelsLast, at::MemoryFormat::Contiguous}) {
    for (const auto& options : kPlans) {
      const int ranks = tied_net::ranks_of(options);
      INFO(describe(options));
      const auto reference = made<UNet>(format);
      const auto x = images(0, ranks * kSamples, format).requires_grad_();
      const auto y = reference->forward(x);
      (y * y).sum().backward();
      REQUIRE(y.is_contiguous(format));
      FormatWatch watch(format);
      check_ranks(ranks, [&](ap::World& world) {
        ap::AutoParallel<UNet> model(world, made<UNet>(format), options);
        torch::optim::SGD optimizer(model->parameters(), 0.05);
        model->attach(optimizer);
        const auto begin = world.rank() * kSamples;
        const auto mine = images(begin, begin + kSamples, format).requires_grad_();
        const auto result = model(mine);
        if (!result.is_contiguous(format)) throw numerics::Failure("a result is in another format");
        (result * result).sum().backward();
        check_close(result, y.slice(0, begin, begin + kSamples), kTolerance, "result");
        check_close(mine.grad(), x.grad().slice(0, begin, begin + kSamples), kTolerance, "gradient of the argument");
        if (!mine.grad().is_contiguous(format)) throw numerics::Failure("an argument's gradient is in another format");
        for (const auto& item : model->named_parameters()) {
          if (!model->owns(item.value())) continue;
          const auto& want = reference->named_parameters()[item.key()].grad();
          check_close(item.value().grad(), numerics::held_part(want, model->shard(item.value())), kTolerance,
                      item.key());
          const bool laid_out = item.value().grad().strides() == item.value().strides();
          if (!laid_out)
            throw numerics::Failure("the gradient of " + item.key() + " is laid out otherwise than the parameter");
        }
      });
      CHECK(watch.others() == "");
      CHECK(watch.kernels().size() >= 4);
    }
  }
}

TEST_CASE("image layout: first rank with images decides for all") {
  constexpr auto kLast = at::MemoryFormat::ChannelsLast, kPlain = at::MemoryFormat::Contiguous;
  torch::set_num_threads(1);
  const auto reference = made<UNet>(kLast);
  const auto want = reference->forward(images(0, 5, kLast));
  FormatWatch watch(kLast);
  check_ranks(3, [&](ap::World& world) {
    ap::AutoParallel<UNet> model(world, made<UNet>(kLast), plan({2, 1}, 2));
    const std::vector<std::pair<int64_t, int64_t>> samples{{0, 0}, {0, 3}, {3, 5}};
    const auto [begin, end] = samples[static_cast<std::size_t>(world.rank())];
    for (int call = 0; call < 2; ++call) {
      const auto result = model(images(begin, end, world.rank() == 1 ? kLast : kPlain));
      check_close(result, want.slice(0, begin, end), kTolerance, "result");
      if (begin < end && !result.is_contiguous(kLast)) throw numerics::Failure("a result is in another format");
    }
    if (model->stats().captures != 1) throw numerics::Failure("captured again");
  });
  CHECK(watch.others() == "");
}

TEST_CASE("memory format: one program each, user may lay out weights") {
  constexpr auto kLast = at::MemoryFormat::ChannelsLast, kPlain = at::MemoryFormat::Contiguous;
  torch::set_num_threads(1);
  const auto reference = made<UNet>(kLast);
  for (const auto& options : {plan({1}, 2), plan({1, 1}, 2), plan({2}, 1, 3)}) {
    INFO(describe(options));
    const int ranks = tied_net::ranks_of(options);
    check_ranks(ranks, [&](ap::World& world) {
      auto model = [&] {
        const std::lock_guard lock(numerics::generator_mutex());
        torch::manual_seed(3);
        return ap::AutoParallel<UNet>(
            world,
            [=] {
              auto net = std::make_shared<UNet>();
              to_format(*net, kLast);
              return net;
            },
            options);
      }();
      torch::optim::SGD optimizer(model->parameters(), 0.05);
      model->attach(optimizer);
      const auto begin = world.rank() * kSamples;
      for (const auto format : {kLast, kPlain, kLast, kPlain}) {
        const auto result = model(images(begin, begin + kSamples, format));
        const auto want = reference->forward(images(begin, begin + kSamples, format));
        check_close(result, want, kTolerance, "result");
      }
      if (model->stats().captures != 2) throw numerics::Failure(std::to_string(model->stats().captures) + " captures");
      for (const auto& [name, tensor] : model->gather_state().pairs()) {
        check_close(tensor, reference->named_parameters()[name], kTolerance, name);
        if (world.rank() == 0 && !tensor.is_contiguous())
          throw numerics::Failure(name + " is gathered in another order");
      }
    });
  }
}

/// Whether they have the same strides but for dims of one element.
bool lie_alike(const Tensor& a, const Tensor& b) {
  bool alike = a.sizes() == b.sizes();
  for (int64_t dim = 0; alike && dim < a.dim(); ++dim) alike = a.size(dim) == 1 || a.stride(dim) == b.stride(dim);
  return alike;
}

TEST_CASE("channels-last in 16 bits: data and gradients keep layouts") {
  constexpr auto kFormat = at::MemoryFormat::ChannelsLast;
  torch::set_num_threads(1);
  for (const auto of_parameters : {at::MemoryFormat::Contiguous, kFormat}) {
    for (auto options : {plan({2}, 2), plan({1}, 2), plan({1, 1}, 2, 0, ap::Recompute::kNever, ap::ScheduleKind::kZbH1),
                         plan({1}, 1, 0, ap::Recompute::kAlways)}) {
      INFO(describe(options));
      options.precision = ap::Precision::kBf16;
      const int ranks = tied_net::ranks_of(options);
      const auto reference = made<ResNet>(kFormat, false);
      {
        const precision_test::AutocastScope in_16_bits(at::kBFloat16);
        reference->forward(images(0, ranks * kSamples, kFormat), labels(0, ranks * kSamples)).backward();
      }
      FormatWatch watch(kFormat);
      check_ranks(ranks, [&](ap::World& world) {
        ap::AutoParallel<ResNet> model(world, made<ResNet>(of_parameters, false), options);
        const auto begin = world.rank() * kSamples;
        model(images(begin, begin + kSamples, kFormat), labels(begin, begin + kSamples)).backward();
        for (const auto& item : model->named_parameters()) {
          if (!model->owns(item.value())) continue;
          const auto& gradient = item.value().grad();
          const auto& want = reference->named_parameters()[item.key()].grad();
          if (!lie_alike(gradient, item.value()))
            throw numerics::Failure("the gradient of " + item.key() + " is laid out otherwise than the parameter");
          const auto apart = ((gradient - want).norm() / want.norm()).item<double>();
          if (apart > 0.02)
            throw numerics::Failure("the gradient of " + item.key() + " is " + std::to_string(apart) + " away");
        }
      });
      CHECK(watch.others() == "");
      CHECK(watch.kernels().size() >= 4);
    }
  }
}

}  // namespace numerics_memory_format_test
