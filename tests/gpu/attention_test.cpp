#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include <ATen/SDPBackend.h>
#include <torch/torch.h>

#include <catch_shim.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "capture/trace/capture.hpp"
#include "gpu/kernel_error.hpp"
#include "torch/interpret/op_interpreter.hpp"
#include "torch/passes/linear_fold.hpp"

// Attention whose gradients are written where those of the product that queries, keys and values are parts of lie,
// beside libtorch's.
namespace gpu_attention_test {

using namespace autopar;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

constexpr std::int64_t kHeads = 3;

/// Queries, keys and values of a product, [samples, heads, length, width].
using Way = std::function<Tensors(const Tensor& product)>;

Tensors unbound(const Tensor& product) {
  return product.view({product.size(0), product.size(1), 3, kHeads, -1}).permute({2, 0, 3, 1, 4}).unbind(0);
}
Tensors split(const Tensor& product) {
  Tensors heads;
  for (const auto& part : product.split(product.size(2) / 3, 2))
    heads.push_back(part.view({part.size(0), part.size(1), kHeads, -1}).transpose(1, 2));
  return heads;
}
Tensors chunked(const Tensor& product) {
  return product.view({product.size(0), product.size(1), kHeads, -1}).transpose(1, 2).chunk(3, -1);
}

struct Attention : torch::nn::Module {
  Attention(std::int64_t width, Way taken, bool causal)
      : way(std::move(taken)), is_causal(causal), product(8, 3 * kHeads * width) {
    register_module("product", product);
    to(at::kCUDA);
  }
  /// With casts of the parameters to the type of `x`, as under bf16-compute.
  Tensor forward(const Tensor& x) {
    const auto cast = [&](const Tensor& parameter) { return parameter.to(x.scalar_type()); };
    const auto parts = way(torch::nn::functional::linear(x, cast(product->weight), cast(product->bias)));
    const auto result = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, is_causal);
    return result.transpose(1, 2).flatten(2);
  }
  Way way;
  bool is_causal;
  torch::nn::Linear product;
};

struct Given {
  Tensor x, gradient;
};

gpu_test::Outcome gradients(Attention& net, const Given& given, const Tensor& result) {
  const auto made =
      torch::autograd::grad({result}, {given.x, net.product->weight, net.product->bias}, {given.gradient});
  return gpu_test::in_double({{"result", result}, {"x", made[0]}, {"weight", made[1]}, {"bias", made[2]}});
}

gpu_test::Outcome by_libtorch(Attention& net, const Given& given) {
  return gradients(net, given, net.forward(given.x));
}

struct Made {
  gpu_test::Outcome outcome;
  bool are_joined = false;  ///< whether the gradients' memory is the one of the product's
};

Made by_library(Attention& net, const Given& given) {
  trace::CaptureOptions options;
  options.device = c10::DeviceType::CUDA;
  const auto graph = passes::fold_linear(trace::capture(
      net, {trace::input_spec(given.x)}, [&](const Tensors& in) -> Tensors { return {net.forward(in[0])}; }, options));
  auto kept = graph.outputs;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const auto op = OpId::of(i);
    if (graph.is(op, "aten::linear")) kept.push_back(graph.output(op));
    if (graph.is(op, "aten::scaled_dot_product_attention")) kept.push_back(graph.input(op, 0));
  }
  REQUIRE(kept.size() == 3);
  const auto plan = algebra::analyze_batch(graph);
  interpret::OpInterpreter runner(graph, plan, replay::all_ops(graph), kept, given.x.device());
  auto values = runner.environment();
  replay::bind_state(graph, net, values);
  values[graph.inputs[0].index()] = given.x;
  std::vector<interpret::NormSample> statistics;
  interpret::SliceContext slice;
  slice.samples = slice.batch = given.x.size(0);
  runner.run(values, slice, statistics);
  const auto result = values[graph.outputs[0].index()];
  const auto of_parts = torch::autograd::grad({result}, {values[kept[1].index()], values[kept[2].index()]},
                                              {given.gradient}, /*retain_graph=*/true);
  return {gradients(net, given, result), of_parts[0].is_alias_of(of_parts[1])};
}

Given drawn(std::int64_t length, std::int64_t width, c10::ScalarType type) {
  return {gpu_test::at_type(torch::randn({4, length, 8}), type).requires_grad_(),
          gpu_test::at_type(torch::randn({4, length, kHeads * width}), type)};
}

bool takes_cudnn(std::int64_t length, std::int64_t width, c10::ScalarType type) {
  const auto like = torch::empty({4, kHeads, length, width}, at::TensorOptions(type).device(at::kCUDA));
  const auto q = like.clone().requires_grad_();
  return at::_fused_sdp_choice(q, q, q) == static_cast<std::int64_t>(at::SDPBackend::cudnn_attention);
}

TEST_CASE("attention: gradients are written into the fused QKV gradient", "[gpu][attention]") {
  torch::manual_seed(3);
  std::int64_t length = 64;  // each case has one of its own: cuDNN's plans are kept by sizes
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    for (const std::int64_t width : {64, 128}) {
      for (const auto& way : {Way(unbound), Way(split), Way(chunked)}) {
        for (const bool libtorch_first : {false, true}) {
          length += 8;
          const bool is_causal = length % 16 == 0;
          INFO(c10::toString(type) << ", width " << width << ", length " << length);
          Attention net(width, way, is_causal);
          const auto given = drawn(length, width, type);
          Attention wide(width, way, is_causal);
          wide.to(at::kDouble);
          {
            const at::NoGradGuard no_grad;
            wide.product->weight.copy_(net.product->weight);
            wide.product->bias.copy_(net.product->bias);
          }
          const auto exact =
              by_libtorch(wide, {given.x.detach().to(at::kDouble).requires_grad_(), given.gradient.to(at::kDouble)});
          gpu_test::Outcome before;
          if (libtorch_first) before = by_libtorch(net, given);
          const auto made = by_library(net, given);
          const auto after = by_libtorch(net, given);
          CHECK(made.are_joined == takes_cudnn(length, width, type));
          gpu_test::check_error(made.outcome, after, exact);
          constexpr double kOfRounding = 0.02;  // a plan for gradients that lie otherwise would be wrong altogether
          for (std::size_t i = 0; i < exact.size(); ++i)
            CHECK(gpu_test::distance(after[i].second, exact[i].second) < kOfRounding);
          if (libtorch_first) gpu_test::check_error(before, after, exact);
        }
      }
    }
  }
}

}  // namespace gpu_attention_test
