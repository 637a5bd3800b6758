#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>

#include <string>
#include <vector>

#include <autopar/autopar.hpp>

#include "gpu/kernel_error.hpp"

// Weight gradients of 16-bit layers are sums in single precision, which products on a GPU add to where they lie.
namespace gpu_weight_sums_test {

namespace ap = autopar;
using torch::Tensor;

struct Widths {
  std::int64_t inputs = 96, first = 200, middle = 136, classes = 27;  // rows of 27 logits end in no whole pack
};

/// Whose products are large ones (fused/products.hpp), of half of the batch too.
constexpr Widths kWide{2048, 2048, 2056, 2048};
constexpr std::int64_t kWideRows = 8192;

struct NetImpl : nets::Linears {
  explicit NetImpl(const Widths& widths)
      : Linears(widths.inputs, {{"first", widths.first}, {"middle", widths.middle}, {"last", widths.classes}}) {}
  Tensor forward(const Tensor& x, const Tensor& y) {
    const auto h = torch::gelu(layers[1](torch::tanh(layers[0](x))));
    return torch::nn::functional::cross_entropy(layers[2](h), y);
  }
};
TORCH_MODULE(Net);

Net made(at::ScalarType type, c10::Device device, const Widths& widths = {}) {
  torch::manual_seed(8);
  Net net(widths);
  net->to(device, type);
  return net;
}

std::vector<Tensor> gradients_of(ap::World& world, const Tensor& x, const Tensor& y, int microbatches,
                                 ap::Precision precision = ap::Precision::kBf16Compute, const Widths& widths = {},
                                 ap::RecomputeOption recompute = ap::Recompute::kNever) {
  ap::Options options;
  options.stages = 1;
  options.replicas = {world.size()};
  options.microbatches = microbatches;
  options.precision = precision;
  options.recompute = recompute;
  auto net = made(at::kFloat, ap::device(world), widths);
  ap::AutoParallel<Net> model(world, net, options);
  model(x.to(at::kFloat), y).backward();
  std::vector<Tensor> gradients;
  for (const auto& p : net->parameters()) gradients.push_back(p.grad().to(at::kDouble));
  return gradients;
}

TEST_CASE("weight gradients in micro-batches: error as of one batch", "[gpu][weight_sums]") {
  ap::World world(0, nullptr);
  REQUIRE(ap::device(world).is_cuda());
  const auto device = ap::device(world);
  torch::manual_seed(9);
  const auto x = torch::randn({512, 96}, at::TensorOptions(at::kDouble).device(device));
  const auto y = torch::randint(27, {512}, at::TensorOptions(at::kLong).device(device));
  auto exact = made(at::kDouble, device);
  exact->forward(x, y).backward();
  gpu_test::check_slices(gradients_of(world, x, y, 1), gradients_of(world, x, y, 4), exact->parameters());
}

TEST_CASE("large weight gradients: error as of one batch, recompute too", "[gpu][weight_sums][products]") {
  ap::World world(0, nullptr);
  const auto device = ap::device(world);
  torch::manual_seed(9);
  const auto x = torch::randn({kWideRows, kWide.inputs}, at::TensorOptions(at::kDouble).device(device));
  const auto y = torch::randint(kWide.classes, {kWideRows}, at::TensorOptions(at::kLong).device(device));
  auto exact = made(at::kDouble, device, kWide);
  exact->forward(x, y).backward();
  for (const ap::Precision precision : {ap::Precision::kBf16, ap::Precision::kBf16Compute}) {
    INFO(ap::option_text(precision));
    const auto whole = gradients_of(world, x, y, 1, precision, kWide);
    gpu_test::check_slices(whole, gradients_of(world, x, y, 2, precision, kWide), exact->parameters());
    const auto again = gradients_of(world, x, y, 1, precision, kWide, ap::Recompute::kAlways);
    for (std::size_t i = 0; i < whole.size(); ++i) CHECK(torch::equal(whole[i], again[i]));
  }
}

struct TableImpl : torch::nn::Module {
  explicit TableImpl(std::int64_t words) : table(words, 64) { register_module("table", table); }
  Tensor forward(const Tensor& ids, const Tensor& factors) { return (table(ids) * factors).sum(); }
  torch::nn::Embedding table;
};
TORCH_MODULE(Table);

TEST_CASE("embedding gradient: fp32 sums for many rows, else rounded", "[gpu][weight_sums]") {
  ap::World world(0, nullptr);
  const auto device = ap::device(world);
  torch::manual_seed(12);
  const auto ids = torch::randint(40, {64, 16}, at::TensorOptions(at::kLong).device(device));
  const auto factors = torch::randn({64, 16, 64}, device).to(at::kBFloat16).to(at::kFloat);
  for (const std::int64_t words : {4096, 50}) {
    const auto exact =
        at::embedding_dense_backward(factors.to(at::kDouble), ids, words, -1, false);  // of a sum of products
    for (const int microbatches : {1, 4}) {
      ap::Options options;
      options.stages = 1;
      options.replicas = {world.size()};
      options.microbatches = microbatches;
      options.precision = ap::Precision::kBf16Compute;
      Table net(words);
      net->to(device);
      ap::AutoParallel<Table> model(world, net, options);
      model(ids, factors).backward();
      const auto& gradient = net->table->weight.grad();
      INFO(words << " words, " << microbatches << " micro-batches");
      CHECK(gradient.scalar_type() == at::kFloat);
      CHECK(gpu_test::distance(gradient.to(at::kDouble), exact) <= (words == 4096 ? 1e-6 : 1e-2));
    }
  }
}

TEST_CASE("fp32 layer gradients: error <= 1.5x libtorch's, repeatable", "[gpu][weight_sums]") {
  ap::World world(0, nullptr);
  const auto device = ap::device(world);
  torch::manual_seed(10);
  const auto x = torch::randn({2048, 96}, at::TensorOptions(at::kDouble).device(device));
  const auto y = torch::randint(24, {2048}, at::TensorOptions(at::kLong).device(device));
  auto exact = made(at::kDouble, device), plain = made(at::kFloat, device);
  exact->forward(x, y).backward();
  plain->forward(x.to(at::kFloat), y).backward();
  const auto ours = gradients_of(world, x, y, 1, ap::Precision::kModule),
             again = gradients_of(world, x, y, 1, ap::Precision::kModule);
  const auto wanted = exact->parameters(), theirs = plain->parameters();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto own = gpu_test::distance(ours[i], wanted[i].grad()),
               of_libtorch = gpu_test::distance(theirs[i].grad(), wanted[i].grad());
    INFO("parameter " << i << ": " << own << ", libtorch " << of_libtorch);
    CHECK(own <= 1.5 * of_libtorch + 1e-7);
    CHECK(torch::equal(ours[i], again[i]));
  }
}

}  // namespace gpu_weight_sums_test
