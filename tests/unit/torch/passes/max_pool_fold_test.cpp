
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "capture/algebra/batch_algebra.hpp"
#include "ops/rules.hpp"
#include "torch/fused/fused_ops.hpp"

#include "unit/torch/passes/folded.hpp"

namespace autopar::test {
namespace max_pool_fold {

using torch::Tensor;

constexpr std::int64_t kSamples = 3, kChannels = 8;

/// What pools images of a convolution.
struct Net : TestModel {
  using Pool = std::function<Tensor(const Tensor&)>;
  Pool pool;
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(kChannels, kChannels, 1)};
  explicit Net(Pool of) : pool(std::move(of)) { register_module("conv", conv); }
  Tensors run(const Tensors& in) override { return {pool(conv(in[0]))}; }
  Tensors arguments(std::int64_t n) override { return {torch::randn({n, kChannels, 33, 21})}; }
};

struct Form {
  std::string name;
  Net::Pool pool;
};

/// What the pooling keeps for its backward.
SavedBytes kept(const OpGraph& graph, c10::DeviceType device) {
  AlgebraOptions options;
  options.device = device;
  const auto plan = algebra::analyze_batch(graph, options);
  return ops::saved_by({graph, plan.values, options, graph.value(graph.outputs[0]).definer});
}

}  // namespace max_pool_fold

TEST_CASE("max_pool2d: fuses dense windows exactly", "[rewrite]") {
  using namespace max_pool_fold;
  torch::manual_seed(31);
  const std::vector<Form> forms{
      {"square", [](const Tensor& x) { return torch::max_pool2d(x, 2); }},
      {"overlapping, padded",
       [](const Tensor& x) {
         return torch::max_pool2d(x, {3, 3}, {2, 2}, {1, 1});
       }},
      {"another height than width, ceil mode",
       [](const Tensor& x) {
         return torch::max_pool2d(x, {5, 2}, {3, 4}, {2, 0}, {1, 1}, true);
       }},
      {"as large as a byte counts", [](const Tensor& x) { return torch::max_pool2d(x, 16, 3); }},
      {"read twice", [](const Tensor& x) {
         const auto y = torch::max_pool2d(x, 3);
         return y * torch::tanh(y);
       }}};
  for (const auto& form : forms) {
    INFO(form.name);
    Net net(form.pool);
    const auto in = net.arguments(kSamples);
    const auto plain = capture_model(net, in), folded = fused::max_pool2d().pattern(plain);
    CHECK(count_floating(folded, fused::kMaxPool) == 1);
    CHECK(count_floating(folded, "aten::max_pool2d") == 0);
    check_folded(net, plain, folded, in);
    CHECK(algebra::analyze_batch(folded).type(folded.outputs[0]) ==
          algebra::analyze_batch(plain).type(plain.outputs[0]));
  }
}

TEST_CASE("max_pool2d: unsupported windows are not fused", "[rewrite]") {
  using namespace max_pool_fold;
  const std::vector<Form> forms{
      {"gaps", [](const Tensor& x) { return torch::max_pool2d(x, 2, 1, 0, 2); }},
      {"gaps in one direction",
       [](const Tensor& x) {
         return torch::max_pool2d(x, {2, 2}, {1, 1}, {0, 0}, {1, 2});
       }},
      {"257 positions and more",
       [](const Tensor& x) {
         return torch::max_pool2d(x, {17, 16});
       }},
      {"images without a batch", [](const Tensor& x) { return torch::max_pool2d(x.flatten(0, 1), 2); }},
      {"indices are results", [](const Tensor& x) { return std::get<0>(at::max_pool2d_with_indices(x, 2)); }}};
  for (const auto& form : forms) {
    INFO(form.name);
    Net net(form.pool);
    const auto plain = capture_model(net, net.arguments(kSamples));
    CHECK(fused::max_pool2d().pattern(plain).hash() == plain.hash());
  }
}

TEST_CASE("max_pool2d: on GPUs channels-last saves a byte per maximum", "[rewrite]") {
  using namespace max_pool_fold;
  Net net([](const Tensor& x) { return torch::max_pool2d(x, 3, 2); });
  const auto rows = net.arguments(kSamples), images = Tensors{rows[0].contiguous(at::MemoryFormat::ChannelsLast)};
  const auto elements = kChannels * 16 * 10;
  const auto of_images = fused::max_pool2d().pattern(capture_model(net, images)),
             of_rows = fused::max_pool2d().pattern(capture_model(net, rows));
  const auto in_kernels = kept(of_images, c10::DeviceType::CUDA);
  CHECK(in_kernels.values.empty());
  CHECK(in_kernels.internal.at(kSamples) == elements * kSamples);
  for (const auto& of_libtorch : {kept(of_images, c10::DeviceType::CPU), kept(of_rows, c10::DeviceType::CUDA)}) {
    CHECK(of_libtorch.values.size() == 1);
    CHECK(of_libtorch.internal.at(kSamples) == elements * kSamples * 8);
  }
}

}  // namespace autopar::test
