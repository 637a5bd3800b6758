#include "torch/fused/channels_last_copy.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>

#include <autopar/autopar.hpp>

#include "torch/device/device_context.hpp"

#include "gpu/kernel_error.hpp"

// Weights between their layouts, and what becomes of the gradients of channels-last convolutions in 16 bits.
namespace gpu_channels_last_copy_test {

namespace ap = autopar;
namespace nn = torch::nn;
using torch::Tensor;

constexpr auto kLast = at::MemoryFormat::ChannelsLast;

TEST_CASE("channels-last copy: weights equal libtorch's bitwise", "[gpu]") {
  REQUIRE(ap::devices::context_of(at::kCUDA).has_kernels(ap::kernels::kChannelsLastCopyKernels, 0));
  torch::manual_seed(12);
  const std::vector<std::vector<std::int64_t>> sizes{{512, 512, 3, 3}, {64, 3, 7, 7}, {33, 321, 3, 3}, {7, 66, 2, 2},
                                                     {16, 1000, 1, 7}, {1, 2, 1, 2},  {8, 2048, 3, 3}, {5, 130, 5, 5}};
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    for (const auto& size : sizes) {
      INFO(c10::IntArrayRef(size) << ", " << c10::toString(type));
      const auto single = torch::randn(size, at::kCUDA);
      const auto half = torch::empty(size, single.options().dtype(type).memory_format(kLast));
      REQUIRE(ap::fused::weight_form_of(single, half));
      ap::fused::copy_between_layouts(half, single);
      CHECK(torch::equal(half, single.to(type)));
      const auto sum = torch::randn(size, at::kCUDA), expected = sum + half;
      ap::fused::add_between_layouts(sum, half);
      CHECK(torch::equal(sum, expected));
      ap::fused::copy_between_layouts(sum, half);
      CHECK(torch::equal(sum, half.to(at::kFloat)));
    }
  }
}

TEST_CASE("channels-last copy: start may be unaligned for 16-bit pairs", "[gpu]") {
  const auto single = torch::randn({8, 64, 3, 3}, at::kCUDA);
  const auto room = torch::zeros({1 + single.numel()}, single.options().dtype(at::kBFloat16));
  const auto half = room.slice(0, 1).as_strided(single.sizes(), single.contiguous(kLast).strides(), 1);
  ap::fused::copy_between_layouts(half, single);
  CHECK(torch::equal(half, single.to(at::kBFloat16)));
  CHECK(room[0].item<float>() == 0);
}

/// A bottleneck whose first and last weights are large enough for products of their own.
struct NetImpl : nn::Module {
  NetImpl() { nets::register_all(*this, "narrow", narrow, "spatial", spatial, "wide", wide, "out", out); }
  Tensor forward(const Tensor& x, const Tensor& y) {
    const auto h = torch::tanh(wide(torch::tanh(spatial(torch::tanh(narrow(x))))) + x).mean({2, 3});
    return nn::functional::cross_entropy(out(h), y);
  }
  nn::Conv2d narrow{nn::Conv2dOptions(2048, 512, 1)}, spatial{nn::Conv2dOptions(512, 512, 3).padding(1).bias(false)},
      wide{nn::Conv2dOptions(512, 2048, 1).bias(false)};
  nn::Linear out{2048, 8};
};
TORCH_MODULE(Net);

Net made(at::ScalarType type, c10::Device device) {
  torch::manual_seed(13);
  Net net;
  net->to(device, type);
  return net;
}

std::vector<Tensor> gradients_of(ap::World& world, const Tensor& x, const Tensor& y, int microbatches) {
  ap::Options options;
  options.stages = 1;
  options.replicas = {world.size()};
  options.microbatches = microbatches;
  options.precision = ap::Precision::kBf16;
  auto net = made(at::kFloat, ap::device(world));
  ap::AutoParallel<Net> model(world, net, options);
  model(x.to(at::kFloat).contiguous(kLast), y).backward();
  std::vector<Tensor> gradients;
  for (const auto& p : net->parameters()) {
    CHECK(p.grad().is_contiguous());
    CHECK(p.grad().scalar_type() == at::kFloat);
    gradients.push_back(p.grad().to(at::kDouble));
  }
  return gradients;
}

TEST_CASE("channels-last conv in 16 bits: gradients keep weight layout", "[gpu]") {
  ap::World world(0, nullptr);
  const auto device = ap::device(world);
  torch::manual_seed(14);
  const auto x = torch::randn({32, 2048, 7, 7}, at::TensorOptions(at::kDouble).device(device));
  const auto y = torch::randint(8, {32}, at::TensorOptions(at::kLong).device(device));
  auto exact = made(at::kDouble, device);
  exact->forward(x, y).backward();
  gpu_test::check_slices(gradients_of(world, x, y, 1), gradients_of(world, x, y, 4), exact->parameters());
}

}  // namespace gpu_channels_last_copy_test
