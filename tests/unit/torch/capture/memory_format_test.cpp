#include <functional>
#include <memory>
#include <string>

#include <torch/nn/functional.h>

#include <catch_shim.hpp>
#include <nets.hpp>

#include "unit/torch/capture/models.hpp"

#include "capture/replay/replay.hpp"

// Strides are part of a value's form: what is captured with channels-last arguments or weights has them as eager has.
namespace autopar::test {
namespace {

namespace F = torch::nn::functional;
using torch::nn::Conv2dOptions;

/// Down, up, skips, squeeze and excitation, a padding, a mask: what convolutional forwards are made of.
struct ChannelsLastUNet : TestModel {
  torch::nn::Conv2d down{Conv2dOptions(3, 8, 3).padding(1)}, deep{Conv2dOptions(8, 16, 3).stride(2).padding(1)},
      squeeze{Conv2dOptions(16, 16, 1)};
  torch::nn::BatchNorm2d norm{8}, second{16};
  torch::nn::ConvTranspose2d up{torch::nn::ConvTranspose2dOptions(16, 8, 2).stride(2)};
  torch::nn::Conv2d out{Conv2dOptions(24, 3, 3)};
  ChannelsLastUNet() {
    nets::register_all(*this, "down", down, "norm", norm, "deep", deep, "second", second, "squeeze", squeeze, "up", up,
                       "out", out);
  }
  Tensors run(const Tensors& in) override {
    const auto a = F::leaky_relu(norm(down(in[0])));
    auto b = torch::silu(second(deep(a)));
    b = b * torch::sigmoid(squeeze(F::adaptive_avg_pool2d(b, F::AdaptiveAvgPool2dFuncOptions(1))));
    b = torch::where(b > 0, b, b * 0.1) + (b - b).clamp_min(0);
    const auto pooled = F::max_pool2d(a, F::MaxPool2dFuncOptions(2));
    const auto wide = F::interpolate(
        pooled, F::InterpolateFuncOptions().scale_factor(std::vector<double>{2, 2}).mode(torch::kNearest));
    const auto joined = torch::cat({a, torch::relu(up(b)), wide}, 1);
    return {out(F::pad(joined, F::PadFuncOptions({1, 1, 1, 1}).mode(torch::kReflect)))};
  }
  Tensors arguments(std::int64_t n) override { return {torch::randn({n, 3, 8, 8})}; }
};

Tensors in_format(Tensors arguments, bool channels_last) {
  for (auto& tensor : arguments) {
    if (channels_last && tensor.dim() == 4) tensor = tensor.contiguous(at::MemoryFormat::ChannelsLast);
  }
  return arguments;
}

void weights_channels_last(TestModel& model) {
  for (auto& parameter : model.parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
  }
}

/// Values, and strides where a size is not one, of everything that a replay makes are those of the capture.
void require_captured_strides(TestModel& model, bool inputs) {
  const auto graph = capture_model(model, in_format(model.arguments(4), inputs));
  std::vector<ValueId> all;
  for (std::size_t v = 0; v < graph.values.size(); ++v) all.push_back(ValueId::of(v));
  replay::Replayer replayer(graph, replay::all_ops(graph), all, at::kCPU);
  for (const std::int64_t batch : {5, 2, 1}) {
    INFO("batch " << batch);
    const auto arguments = in_format(model.arguments(batch), inputs);
    auto environment = replayer.environment();
    replay::bind_state(graph, model, environment);
    for (std::size_t i = 0; i < arguments.size(); ++i) environment[graph.inputs[i].index()] = arguments[i];
    replayer.run(environment, {batch, batch});
    for (std::size_t v = 0; v < graph.values.size(); ++v) {
      const auto& info = graph.values[v];
      const auto& tensor = environment[v];
      if (!tensor.defined() || tensor.dim() < 4) continue;
      INFO("value " << v << " of " << (info.definer.valid() ? graph.describe(info.definer) : info.name) << ", strides "
                    << tensor.strides());
      for (std::size_t d = 0; d < info.sizes.size(); ++d) {
        const auto dim = static_cast<std::int64_t>(d);
        if (tensor.size(dim) != 1) CHECK(info.strides[d].at(batch) == tensor.stride(dim));
      }
    }
    const auto eager = model.run(arguments);
    for (std::size_t i = 0; i < eager.size(); ++i) {
      const auto& replayed = environment[graph.outputs[i].index()];
      CHECK(replayed.strides() == eager[i].strides());
    }
  }
}

template <class Model>
void check_formats() {
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    for (const bool weights : {false, true}) {
      for (const bool inputs : {false, true}) {
        torch::manual_seed(1);
        const auto before = torch::get_default_dtype();
        torch::set_default_dtype(c10::scalarTypeToTypeMeta(type));
        Model model;
        model.eval();
        if (weights) weights_channels_last(model);
        INFO((type == torch::kFloat ? "float" : "double") << ", weights " << weights << ", inputs " << inputs);
        require_captured_strides(model, inputs);
        torch::set_default_dtype(before);
      }
    }
  }
}

}  // namespace

TEST_CASE("capture: strides of ResNet equal eager, channels-last or not", "[replay]") { check_formats<ResNet>(); }
TEST_CASE("capture: strides of UNet equal eager, channels-last or not", "[replay]") {
  check_formats<ChannelsLastUNet>();
}

}  // namespace autopar::test
