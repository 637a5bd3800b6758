#pragma once

#include <torch/torch.h>

#include <ATen/record_function.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nets.hpp>

#include <autopar/autopar.hpp>

#include "../numerics/precision.hpp"
#include "models/resnet.hpp"
#include "models/transformer.hpp"

/// Small models that use all kernels of the library, trained for some steps through autopar and by libtorch alone. On
/// any device.
namespace gpu_tasks {

namespace ap = autopar;
using numerics::Snapshot;
using torch::Tensor;

/// Gated layers with residuals: chains of point-wise operators between products.
struct Gates : torch::nn::Module {
  Gates() {
    for (int i = 0; i < 3; ++i) {
      gates->push_back(torch::nn::Linear(kWidth, kHidden));
      ups->push_back(torch::nn::Linear(kWidth, kHidden));
      downs->push_back(torch::nn::Linear(kHidden, kWidth));
    }
    nets::register_all(*this, "gates", gates, "ups", ups, "downs", downs);
  }
  Tensor forward(Tensor x, const Tensor& wanted) {
    for (std::size_t i = 0; i < gates->size(); ++i) {
      const auto on = [&](torch::nn::ModuleList& layers, const Tensor& value) {
        return layers[i]->as<torch::nn::Linear>()->forward(value);
      };
      x = x + on(downs, torch::silu(on(gates, x)) * on(ups, x));
    }
    return torch::mse_loss(x, wanted);
  }
  static constexpr std::int64_t kWidth = 64, kHidden = 96;
  torch::nn::ModuleList gates, ups, downs;
};

enum class Stepping { kAdamW, kSgd };

template <class Net>
struct Task {
  std::string name;
  std::function<std::shared_ptr<Net>()> make;
  std::vector<std::pair<Tensor, Tensor>> batches;  ///< one for each step, on the device
  Stepping stepping = Stepping::kAdamW;
  c10::Device device = c10::kCPU;
};

constexpr int kSteps = 3;

inline std::vector<std::pair<Tensor, Tensor>> batches_of(c10::Device device,
                                                         const std::function<std::pair<Tensor, Tensor>()>& batch,
                                                         std::uint64_t seed = 4) {
  torch::manual_seed(seed);
  std::vector<std::pair<Tensor, Tensor>> made;
  for (int step = 0; step < kSteps; ++step) {
    const auto [x, y] = batch();
    made.emplace_back(
        x.to(device).contiguous(x.dim() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous),
        y.to(device));
  }
  return made;
}

inline Task<models::TransformerImpl> transformer_task(c10::Device device, const models::TransformerSize& size) {
  return {"transformer", [size] { return std::make_shared<models::TransformerImpl>(size); },
          batches_of(device,
                     [&] {
                       const auto text = torch::randint(size.words, {8, size.length + 1}, torch::kLong);
                       return std::pair(text.slice(1, 0, -1).contiguous(), text.slice(1, 1).contiguous());
                     }),
          Stepping::kAdamW, device};
}

/// Attention, norms of residual sums, GELU, and a loss over 1003 classes, whose rows end in no whole pack of 16 bytes.
inline Task<models::TransformerImpl> small_transformer_task(c10::Device device, double dropout = 0) {
  return transformer_task(device, {1003, 64, 2, 4, 24, true, dropout});
}

/// Convolutions, batch norms with and without additions, max-pooling; channels-last.
inline Task<models::ResNetImpl> resnet_task(c10::Device device, const models::ResNetSize& size, std::int64_t pixels,
                                            std::uint64_t seed) {
  return {
      "ResNet", [size] { return std::make_shared<models::ResNetImpl>(size); },
      batches_of(
          device,
          [&] {
            return std::pair(torch::randn({16, 3, pixels, pixels}), torch::randint(size.classes, {16}, torch::kLong));
          },
          seed),
      Stepping::kSgd, device};
}

/// Of so many elements that those which rounding takes to another side of a ReLU are alike in two programs.
inline Task<models::ResNetImpl> wide_resnet_task(c10::Device device) {
  return resnet_task(device, {{1, 1, 1, 1}, true, 16, 104}, 64, 4);
}

/// With these samples no argument of a ReLU is so near 0 that rounding in fp32 takes it to the other side
/// (`NearestBend`), by which a gradient changes by all that goes through.
inline Task<models::ResNetImpl> narrow_resnet_task(c10::Device device) {
  return resnet_task(device, {{1, 1, 1, 1}, false, 8, 103}, 32, 7);
}

inline Task<Gates> gates_task(c10::Device device) {
  return {"gates", [] { return std::make_shared<Gates>(); },
          batches_of(device,
                     [] {
                       return std::pair(torch::randn({48, Gates::kWidth}), torch::randn({48, Gates::kWidth}));
                     }),
          Stepping::kAdamW, device};
}

/// How a task is computed.
struct Setting {
  ap::Precision precision = ap::Precision::kModule;
  ap::Switch fusion = ap::Switch::kOn;
  int microbatches = 1;
  ap::CudaGraphs cuda_graphs = ap::CudaGraphs::kAuto;

  [[nodiscard]] std::string describe() const {
    std::ostringstream out;
    out << "precision " << ap::option_text(precision) << ", fusion " << ap::option_text(fusion) << ", " << microbatches
        << " micro-batches";
    return out.str();
  }
};

/// Epsilon is so large that elements whose gradient is rounding alone do not move.
template <class AdamW, class Sgd>
std::unique_ptr<torch::optim::Optimizer> optimizer_of(Stepping stepping, std::vector<Tensor> parameters) {
  if (stepping == Stepping::kSgd)
    return std::make_unique<Sgd>(std::move(parameters), torch::optim::SGDOptions(1e-3).momentum(0.9));
  return std::make_unique<AdamW>(std::move(parameters), torch::optim::AdamWOptions(1e-2).eps(1e-3));
}

template <class Net>
std::shared_ptr<Net> seeded(const Task<Net>& task) {
  torch::manual_seed(11);
  return task.make();
}

/// What a training has made: the losses, and by how much parameters and buffers have changed, in double precision on
/// the CPU.
template <class Net>
Snapshot outcome(const Task<Net>& task, const std::vector<Tensor>& losses,
                 const std::function<Tensor(const std::string&)>& end) {
  std::vector<Tensor> in_double;
  for (const auto& loss : losses) in_double.push_back(loss.detach().cpu().to(torch::kDouble));
  Snapshot made{{"losses", torch::stack(in_double)}};
  const auto net = seeded(task);
  for (const auto& tensors : {net->named_parameters(), net->named_buffers()}) {
    for (const auto& item : tensors) {
      const auto change = end(item.key()).detach().cpu().to(torch::kDouble) - item.value().detach().to(torch::kDouble);
      made.emplace_back(item.key(), change);
    }
  }
  return made;
}

template <class Net>
ap::AutoParallel<Net> wrapped(ap::World& world, const Task<Net>& task, const Setting& setting) {
  ap::Options options;
  options.stages = 1;
  options.microbatches = setting.microbatches;
  options.replicas = {1};
  options.recompute = ap::Recompute::kNever;
  options.fusion = setting.fusion;
  options.cuda_graphs = setting.cuda_graphs;
  options.precision = setting.precision;
  options.costs = ap::CostChoice::kRoofline;
  options.device = task.device.is_cuda() ? ap::DeviceChoice::kCuda : ap::DeviceChoice::kCpu;
  options.log_level = "error";  // not that norms take their statistics from micro-batches
  return {world, seeded(task), options};
}

/// Through autopar, on one rank.
template <class Net>
Snapshot trained(ap::World& world, const Task<Net>& task, const Setting& setting) {
  auto model = wrapped(world, task, setting);
  const auto optimizer = optimizer_of<ap::optim::AdamW, ap::optim::SGD>(task.stepping, model->parameters());
  model->attach(*optimizer);
  std::vector<Tensor> losses;
  for (const auto& [x, y] : task.batches) {
    optimizer->zero_grad();
    auto loss = model(x, y);
    loss.backward();
    optimizer->step();
    losses.push_back(loss);
  }
  if (model->stats().skipped_steps > 0) throw numerics::Failure("a step was skipped: its loss scale was too large");
  const auto state = model->gather_state();
  return outcome<Net>(task, losses, [&](const std::string& name) { return state[name]; });
}

/// A part of a step's batch through the module, and its gradients, added where there are some.
template <class Net>
Tensor run_part(Net& net, const Tensor& x, const Tensor& y, std::optional<ap::Precision> precision, double factor) {
  const auto loss = [&] {
    if (precision != ap::Precision::kBf16 && precision != ap::Precision::kFp16) return net.forward(x, y);
    const precision_test::AutocastScope autocast(precision == ap::Precision::kBf16 ? at::kBFloat16 : at::kHalf,
                                                 x.device().type());
    return net.forward(x, y);
  }();
  (loss * factor).backward();
  return loss.detach().to(loss.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

/// The least absolute value that a ReLU on this thread was given, while it lives.
class NearestBend {
 public:
  NearestBend()
      : callback_(at::addThreadLocalCallback(
            at::RecordFunctionCallback([](const at::RecordFunction& called) {
              if (std::string_view(called.name()) == "aten::relu_") {
                const at::NoGradGuard no_grad;
                value() = std::min(value(), called.inputs()[0].toTensor().detach().abs().min().item<double>());
              }
              return std::unique_ptr<at::ObserverContext>();
            })
                .needsInputs(true)
                .scopes({at::RecordScope::FUNCTION}))) {
    value() = std::numeric_limits<double>::infinity();
  }
  ~NearestBend() { at::removeCallback(callback_); }
  NearestBend(const NearestBend&) = delete;
  NearestBend& operator=(const NearestBend&) = delete;
  [[nodiscard]] double distance() const { return value(); }

 private:
  static double& value() {
    thread_local double nearest = 0;
    return nearest;
  }
  at::CallbackHandle callback_;
};

/// A module that computes in a type of its own, and the parameters that an optimizer steps: its own, or masters in fp32
/// of a module in bf16.
template <class Net>
struct Plain {
  std::shared_ptr<Net> net;
  std::vector<Tensor> masters;

  Plain(const Task<Net>& task, std::optional<ap::Precision> precision) : net(seeded(task)) {
    const bool brain = precision == ap::Precision::kBf16Compute;
    const auto type = precision == precision_test::kExactly ? at::kDouble : brain ? at::kBFloat16 : at::kFloat;
    net->to(task.device);
    for (const auto& parameter : net->parameters())
      masters.push_back(brain ? parameter.detach().clone() : Tensor(parameter));
    for (const auto& tensors : {net->parameters(), net->buffers()}) {  // Module::to() would convert counters, too
      for (const auto& tensor : tensors) {
        if (tensor.is_floating_point()) tensor.set_data(tensor.detach().to(type));
      }
    }
  }
  /// Gives gradients, which are `factor` times too large, to the masters, and the masters' values back after a step.
  void step(torch::optim::Optimizer& optimizer, double factor) {
    const torch::NoGradGuard no_grad;
    const auto parameters = net->parameters();
    for (std::size_t i = 0; i < masters.size(); ++i)
      masters[i].mutable_grad() = parameters[i].grad().to(masters[i].scalar_type()).div_(factor);
    optimizer.step();
    for (std::size_t i = 0; i < masters.size(); ++i) {
      parameters[i].set_data(masters[i].detach().to(parameters[i].scalar_type()));
      parameters[i].mutable_grad() = Tensor();
    }
  }
};

/// By libtorch alone, in `parts` of each batch, whose mean loss it is. fp16 has a constant loss scale.
template <class Net>
Snapshot trained_by_libtorch(const Task<Net>& task, std::optional<ap::Precision> precision, int parts) {
  std::unique_ptr<precision_test::Tf32OfProcess> tf32;
  if (precision == ap::Precision::kTf32) tf32 = std::make_unique<precision_test::Tf32OfProcess>();
  const double scale = precision == ap::Precision::kFp16 ? 1024 : 1;
  Plain<Net> plain(task, precision);
  const auto optimizer = optimizer_of<torch::optim::AdamW, torch::optim::SGD>(task.stepping, plain.masters);
  std::vector<Tensor> losses;
  for (const auto& [x, y] : task.batches) {
    Tensor sum;
    const auto xs = x.chunk(parts), ys = y.chunk(parts);
    for (int i = 0; i < parts; ++i) {
      auto own = xs[static_cast<std::size_t>(i)], wanted = ys[static_cast<std::size_t>(i)];
      const auto type = plain.net->parameters().front().scalar_type();
      if (own.is_floating_point()) own = own.to(type);
      if (wanted.is_floating_point()) wanted = wanted.to(type);
      const auto loss = run_part(*plain.net, own, wanted, precision, scale / parts);
      sum = sum.defined() ? sum + loss : loss;
    }
    losses.push_back(sum / parts);
    plain.step(*optimizer, scale);
  }
  const auto parameters = plain.net->named_parameters();
  const auto buffers = plain.net->named_buffers();
  const auto keys = parameters.keys();
  return outcome<Net>(task, losses, [&](const std::string& name) -> Tensor {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (keys[i] == name) return plain.masters[i];
    }
    return buffers[name];
  });
}

}  // namespace gpu_tasks
