#pragma once

#include <cstdint>
#include <vector>

#include <torch/nn.h>

namespace models {

struct ResNetSize {
  std::vector<std::int64_t> blocks{3, 4, 6, 3};  ///< of each of the four groups
  std::int64_t planes = 64;                      ///< narrow channels of the first group
  std::int64_t classes = 1000;
};

/// 1 x 1, 3 x 3 and 1 x 1 convolutions beside a shortcut (He et al. 2016).
struct BottleneckImpl : torch::nn::Module {
  static constexpr std::int64_t kExpansion = 4;
  torch::nn::Conv2d conv1, conv2, conv3;
  torch::nn::BatchNorm2d bn1, bn2, bn3;
  torch::nn::Sequential shortcut;

  BottleneckImpl(std::int64_t channels, std::int64_t planes, std::int64_t stride)
      : conv1(torch::nn::Conv2dOptions(channels, planes, 1).bias(false)),
        conv2(torch::nn::Conv2dOptions(planes, planes, 3).stride(stride).padding(1).bias(false)),
        conv3(torch::nn::Conv2dOptions(planes, kExpansion * planes, 1).bias(false)),
        bn1(planes),
        bn2(planes),
        bn3(kExpansion * planes) {
    register_module("conv1", conv1);
    register_module("bn1", bn1);
    register_module("conv2", conv2);
    register_module("bn2", bn2);
    register_module("conv3", conv3);
    register_module("bn3", bn3);
    if (stride != 1 || channels != kExpansion * planes) {
      shortcut->push_back(
          torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, kExpansion * planes, 1).stride(stride).bias(false)));
      shortcut->push_back(torch::nn::BatchNorm2d(kExpansion * planes));
    }
    register_module("shortcut", shortcut);
  }
  at::Tensor forward(const at::Tensor& x) {
    auto y = bn1(conv1(x)).relu_();
    y = bn2(conv2(y)).relu_();
    y = bn3(conv3(y));
    y += shortcut->is_empty() ? x : shortcut->forward(x);
    return y.relu_();
  }
};
TORCH_MODULE(Bottleneck);

struct ResNetImpl : torch::nn::Module {
  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  torch::nn::Sequential blocks;
  torch::nn::Linear fc;

  explicit ResNetImpl(const ResNetSize& size)
      : conv1(torch::nn::Conv2dOptions(3, size.planes, 7).stride(2).padding(3).bias(false)),
        bn1(size.planes),
        fc(8 * size.planes * BottleneckImpl::kExpansion, size.classes) {
    auto channels = size.planes, planes = size.planes;
    for (std::size_t group = 0; group < size.blocks.size(); ++group, planes *= 2) {
      for (std::int64_t i = 0; i < size.blocks[group]; ++i) {
        blocks->push_back(Bottleneck(channels, planes, group > 0 && i == 0 ? 2 : 1));
        channels = planes * BottleneckImpl::kExpansion;
      }
    }
    register_module("conv1", conv1);
    register_module("bn1", bn1);
    register_module("blocks", blocks);
    register_module("fc", fc);
  }
  at::Tensor forward(const at::Tensor& images, const at::Tensor& wanted) {
    auto x = torch::max_pool2d(bn1(conv1(images)).relu_(), 3, 2, 1);
    x = blocks->forward(x);
    x = torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1);
    return torch::nn::functional::cross_entropy(fc(x), wanted);
  }
};
TORCH_MODULE(ResNet);

}  // namespace models
