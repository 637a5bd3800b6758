#include "torch/rewrite/layer_norm_fold.hpp"

#include <torch/torch.h>

#include <catch_shim.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "unit/torch/capture/models.hpp"

#include "torch/ir/add_layer_norm.hpp"
#include "torch/replay/replay.hpp"

namespace autopar::test {
namespace layer_norm_fold {

using torch::Tensor;

constexpr std::int64_t kSamples = 3, kWidth = 6;

struct Net : TestModel {
  using Forward = std::function<Tensor(Net&, const Tensor&)>;
  Forward forward;
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({kWidth})}, other{torch::nn::LayerNormOptions({kWidth})},
      plain{torch::nn::LayerNormOptions({kWidth}).elementwise_affine(false)};
  torch::nn::Linear layer{kWidth, kWidth};
  explicit Net(Forward of) : forward(std::move(of)) {
    register_module("norm", norm);
    register_module("other", other);
    register_module("plain", plain);
    register_module("layer", layer);
    for (auto& parameter : parameters()) parameter.data().normal_();
  }
  Tensors run(const Tensors& in) override { return {forward(*this, in[0])}; }
  Tensors arguments(std::int64_t n) override { return {torch::randn({n, 4, kWidth})}; }
};

Tensors trained(Net& net, const OpGraph& graph, const Tensors& in) {
  Replayer replayer(graph, all_ops(graph), graph.outputs, at::kCPU);
  auto environment = replayer.environment();
  bind_state(graph, net, environment);
  environment[graph.inputs.front().index()] = in[0];
  replayer.run(environment, {kSamples, kSamples});
  const auto result = environment[graph.outputs.front().index()];
  net.zero_grad();
  (result * torch::arange(1, result.numel() + 1, result.options()).view_as(result).cos()).sum().backward();
  Tensors out{result.detach()};
  for (const auto& parameter : net.parameters())
    out.push_back(parameter.grad().defined() ? parameter.grad().clone() : torch::zeros({}));
  return out;
}

struct Form {
  std::string name;
  Net::Forward forward;
  int joined;
};

}  // namespace layer_norm_fold

TEST_CASE("a sum and the layer norm that reads it first become one operator that makes the same", "[rewrite]") {
  using namespace layer_norm_fold;
  torch::manual_seed(21);
  const std::vector<Form> forms{
      {"residuals of a block",
       [](Net& n, const Tensor& x) {
         const auto y = x + n.layer(n.norm(x));
         return y + torch::tanh(n.layer(n.other(y)));
       },
       1},
      {"norms behind", [](Net& n, const Tensor& x) { return n.norm(x + n.layer(x)); }, 1},
      {"two norms of one sum",
       [](Net& n, const Tensor& x) {
         const auto y = n.layer(x) + x;
         return n.norm(y) * n.other(y);
       },
       1},
      {"a chain",
       [](Net& n, const Tensor& x) {
         auto y = x;
         for (int i = 0; i < 3; ++i) y = y + n.layer(n.norm(y));
         return n.other(y);
       },
       3},
      {"read before the norm",
       [](Net& n, const Tensor& x) {
         const auto y = x + n.layer(x);
         const auto z = torch::tanh(y);
         return n.norm(y) * z;
       },
       0},
      {"a row is added", [](Net& n, const Tensor& x) { return n.norm(n.layer(x) + x[0]); }, 0},
      {"a factor", [](Net& n, const Tensor& x) { return n.norm(torch::add(n.layer(x), x, 2)); }, 0},
      {"in place",
       [](Net& n, const Tensor& x) {
         auto y = n.layer(x);
         y += x;
         return n.norm(y);
       },
       0},
      {"without weights", [](Net& n, const Tensor& x) { return n.plain(x + n.layer(x)); }, 0},
      {"an addend is written in between",
       [](Net& n, const Tensor& x) {
         auto z = torch::zeros_like(x);
         const auto y = n.layer(x) + z;
         z += 1;
         return n.norm(y) * z;
       },
       0}};
  for (const auto& form : forms) {
    INFO(form.name);
    Net net(form.forward);
    const auto plain = capture(net, specs(net.arguments(kSamples)), [&](const Tensors& in) { return net.run(in); });
    const auto joined = fold_layer_norms(plain);
    int found = 0;
    for (std::size_t i = 0; i < joined.ops.size(); ++i) found += joined.is(OpId::of(i), kAddLayerNorm) ? 1 : 0;
    CHECK(found == form.joined);
    CHECK(joined.ops.size() + static_cast<std::size_t>(found) == plain.ops.size());
    const auto in = net.arguments(kSamples);
    const auto expected = trained(net, plain, in), made = trained(net, joined, in);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      INFO(i);
      CHECK(torch::allclose(made[i], expected[i], 1e-6, 1e-6));  // gradients of a sum are added in another order
    }
  }
}

}  // namespace autopar::test
