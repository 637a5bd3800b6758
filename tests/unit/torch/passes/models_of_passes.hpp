#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <nets.hpp>

#include "unit/torch/capture/models.hpp"

// Models that each pass changes one of.
namespace autopar::test {

/// A residual block with attention's three parts, point-wise groups and a class head with its loss in two operators.
struct BlockWithHead : TestModel {
  static constexpr int kWidth = 8, kClasses = 40;
  torch::nn::Linear parts{kWidth, 3 * kWidth}, gate{kWidth, kWidth}, head{kWidth, kClasses};
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({kWidth})};
  BlockWithHead() { nets::register_all(*this, "parts", parts, "gate", gate, "norm", norm, "head", head); }
  Tensors run(const Tensors& in) override {
    const auto three = parts(in[0]).view({in[0].size(0), 3, kWidth}).transpose(0, 1);
    const auto mixed = torch::tanh(three[0]) * three[1] + three[2];
    const auto sum = in[0] + mixed;
    const auto logits = head(torch::silu(gate(norm(sum))) * mixed + sum);
    return {torch::nn::functional::nll_loss(torch::nn::functional::log_softmax(logits, 1), in[1])};
  }
  Tensors arguments(std::int64_t n) override { return {torch::randn({n, kWidth}), torch::randint(kClasses, {n})}; }
};

/// A convolution whose images are channels-last.
struct ChannelsLastImages : TestModel {
  torch::nn::Conv2d first{torch::nn::Conv2dOptions(3, 8, 3)}, second{torch::nn::Conv2dOptions(8, 8, 3)};
  ChannelsLastImages() { nets::register_all(*this, "first", first, "second", second); }
  Tensors run(const Tensors& in) override {
    const auto images = in[0].contiguous(at::MemoryFormat::ChannelsLast);
    return {second(torch::relu(first(images))).mean()};
  }
  Tensors arguments(std::int64_t n) override { return {torch::randn({n, 3, 8, 8})}; }
};

inline std::vector<std::pair<std::string, std::shared_ptr<TestModel>>> models_of_passes() {
  return {{"mlp", std::make_shared<Mlp>()},
          {"residual network", std::make_shared<ResNet>()},
          {"transformer", std::make_shared<Transformer>()},
          {"block", std::make_shared<BlockWithHead>()},
          {"images", std::make_shared<ChannelsLastImages>()}};
}

inline OpGraph captured_for_passes(TestModel& model, const Tensors& in, bool in_bf16) {
  trace::CaptureOptions options;
  if (in_bf16) options.autocast = autopar::trace::Autocast{at::kBFloat16, c10::DeviceType::CPU};
  return trace::capture(
      model, specs(in), [&](const Tensors& arguments) { return model.run(arguments); }, options);
}

}  // namespace autopar::test
