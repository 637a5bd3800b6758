#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/nn.h>

namespace models {

/// What a residual network consists of. The default is ResNet-50.
struct ResNetSize {
  std::vector<std::int64_t> blocks{3, 4, 6, 3};  ///< of each of the four groups
  bool bottlenecks = true;                       ///< blocks of three convolutions, the outer ones 1 x 1; else of two
  std::int64_t planes = 64;                      ///< narrow channels of the first group
  std::int64_t classes = 1000;

  /// Channels that a block gives to the next, over its narrow ones.
  [[nodiscard]] std::int64_t expansion() const { return bottlenecks ? 4 : 1; }
  /// Channels of what the last layer classifies.
  [[nodiscard]] std::int64_t features() const { return 8 * planes * expansion(); }
  /// Of the forward of one image of `pixels` x `pixels`: matrix products and convolutions alone.
  [[nodiscard]] double multiply_adds(std::int64_t pixels) const;
};

/// "resnet50", or with a width factor, which multiplies the filters of every convolution (Kolesnikov et al. 2020, "Big
/// Transfer"), "resnet50x4".
/// @throws std::invalid_argument naming what there is
inline ResNetSize resnet_size(const std::string& name, std::int64_t classes = 1000) {
  static const std::map<std::string, ResNetSize> depths{{"18", {{2, 2, 2, 2}, false}},
                                                        {"34", {{3, 4, 6, 3}, false}},
                                                        {"50", {{3, 4, 6, 3}, true}},
                                                        {"101", {{3, 4, 23, 3}, true}},
                                                        {"152", {{3, 8, 36, 3}, true}}};
  const std::string family = "resnet";
  const auto by = name.find('x');
  const auto begin = family.size();
  const auto depth = name.starts_with(family) ? name.substr(begin, by == name.npos ? by : by - begin) : "";
  const auto factor = by == name.npos ? "1" : name.substr(by + 1);
  const auto found = depths.find(depth);
  if (found == depths.end() || factor.size() != 1 || factor < "1" || factor > "8") {
    throw std::invalid_argument(
        "there is no network '" + name +
        "'; there are resnet18, 34, 50, 101 and 152, each up to eight times as wide: resnet50x8");
  }
  auto size = found->second;
  size.planes *= factor.front() - '0';
  size.classes = classes;
  return size;
}

namespace detail {

/// Without a bias, as a batch norm follows, and with the values of torchvision.
inline torch::nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride = 1) {
  using Options = torch::nn::Conv2dOptions;
  torch::nn::Conv2d made(Options(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
  torch::nn::init::kaiming_normal_(made->weight, 0, torch::kFanOut, torch::kReLU);
  return made;
}

/// What takes a block's input to the size of its output; nothing where it has that.
inline torch::nn::Sequential downsample(std::int64_t in, std::int64_t out, std::int64_t stride) {
  if (stride == 1 && in == out) return nullptr;
  return torch::nn::Sequential(convolution(in, out, 1, stride), torch::nn::BatchNorm2d(out));
}

}  // namespace detail

/// Two 3 x 3 convolutions beside a shortcut (He et al. 2016, figure 5, left).
struct BasicBlockImpl : torch::nn::Module {
  torch::nn::Conv2d conv1, conv2;
  torch::nn::BatchNorm2d bn1, bn2;
  torch::nn::Sequential downsample;

  BasicBlockImpl(std::int64_t channels, std::int64_t planes, std::int64_t stride)
      : conv1(detail::convolution(channels, planes, 3, stride)),
        conv2(detail::convolution(planes, planes, 3)),
        bn1(planes),
        bn2(planes),
        downsample(detail::downsample(channels, planes, stride)) {
    register_module("conv1", conv1);
    register_module("bn1", bn1);
    register_module("conv2", conv2);
    register_module("bn2", bn2);
    if (downsample) register_module("downsample", downsample);
  }
  at::Tensor forward(const at::Tensor& x) {
    auto y = bn1(conv1(x)).relu_();
    y = bn2(conv2(y));
    y += downsample ? downsample->forward(x) : x;
    return y.relu_();
  }
};
TORCH_MODULE(BasicBlock);

/// 1 x 1, 3 x 3 and 1 x 1 convolutions beside a shortcut (the same figure, right; the 3 x 3 one has the stride).
struct BottleneckImpl : torch::nn::Module {
  torch::nn::Conv2d conv1, conv2, conv3;
  torch::nn::BatchNorm2d bn1, bn2, bn3;
  torch::nn::Sequential downsample;

  BottleneckImpl(std::int64_t channels, std::int64_t planes, std::int64_t stride)
      : conv1(detail::convolution(channels, planes, 1)),
        conv2(detail::convolution(planes, planes, 3, stride)),
        conv3(detail::convolution(planes, 4 * planes, 1)),
        bn1(planes),
        bn2(planes),
        bn3(4 * planes),
        downsample(detail::downsample(channels, 4 * planes, stride)) {
    register_module("conv1", conv1);
    register_module("bn1", bn1);
    register_module("conv2", conv2);
    register_module("bn2", bn2);
    register_module("conv3", conv3);
    register_module("bn3", bn3);
    if (downsample) register_module("downsample", downsample);
  }
  at::Tensor forward(const at::Tensor& x) {
    auto y = bn1(conv1(x)).relu_();
    y = bn2(conv2(y)).relu_();
    y = bn3(conv3(y));
    y += downsample ? downsample->forward(x) : x;
    return y.relu_();
  }
};
TORCH_MODULE(Bottleneck);

/// ResNets with the names, the shapes and the first values of torchvision's, so that files of weights fit both.
struct ResNetImpl : torch::nn::Module {
  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  std::vector<torch::nn::Sequential> layers;
  torch::nn::Linear fc;
  double label_smoothing;  ///< of the loss: the share of each label that is spread over all classes

  explicit ResNetImpl(const ResNetSize& size, double smoothing = 0)
      : conv1(detail::convolution(3, size.planes, 7, 2)), bn1(size.planes), fc(nullptr), label_smoothing(smoothing) {
    register_module("conv1", conv1);
    register_module("bn1", bn1);
    auto channels = size.planes, planes = size.planes;
    for (std::size_t group = 0; group < size.blocks.size(); ++group, planes *= 2) {
      torch::nn::Sequential layer;
      for (std::int64_t i = 0; i < size.blocks[group]; ++i) {
        const std::int64_t stride = group > 0 && i == 0 ? 2 : 1;
        if (size.bottlenecks)
          layer->push_back(Bottleneck(channels, planes, stride));
        else
          layer->push_back(BasicBlock(channels, planes, stride));
        channels = planes * size.expansion();
      }
      layers.push_back(register_module("layer" + std::to_string(group + 1), layer));
    }
    fc = register_module("fc", torch::nn::Linear(size.features(), size.classes));
  }
  /// [samples, 3, height, width] -> [samples, classes]
  at::Tensor logits(const at::Tensor& images) {
    auto x = torch::max_pool2d(bn1(conv1(images)).relu_(), 3, 2, 1);
    for (auto& layer : layers) x = layer->forward(x);
    return fc(torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
  }
  /// The mean loss.
  at::Tensor forward(const at::Tensor& images, const at::Tensor& wanted) {
    using Options = torch::nn::functional::CrossEntropyFuncOptions;
    return torch::nn::functional::cross_entropy(logits(images), wanted, Options().label_smoothing(label_smoothing));
  }
};
TORCH_MODULE(ResNet);

inline double ResNetSize::multiply_adds(std::int64_t pixels) const {
  double channels = static_cast<double>(planes), narrow = channels, edge = static_cast<double>(pixels) / 2;
  double sum = edge * edge * channels * 3 * 49;
  edge /= 2;
  for (std::size_t group = 0; group < blocks.size(); ++group, narrow *= 2) {
    const double out = narrow * static_cast<double>(expansion());
    for (std::int64_t i = 0; i < blocks[group]; ++i) {
      const double before = edge;
      if (group > 0 && i == 0) edge /= 2;
      sum += bottlenecks ? before * before * channels * narrow + edge * edge * (9 * narrow * narrow + narrow * out)
                         : edge * edge * 9 * narrow * (channels + narrow);
      if (channels != out || before != edge) sum += edge * edge * channels * out;
      channels = out;
    }
  }
  return sum + static_cast<double>(features() * classes);
}

}  // namespace models
