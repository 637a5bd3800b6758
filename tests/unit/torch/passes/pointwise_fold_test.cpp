
#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "unit/torch/capture/models.hpp"

#include "capture/algebra/batch_algebra.hpp"
#include "capture/replay/replay.hpp"
#include "torch/fused/fused_ops.hpp"

namespace autopar::test {
namespace pointwise_fold {

using torch::Tensor;

constexpr std::int64_t kSamples = 3, kWidth = 6;

struct Net : TestModel {
  using Forward = std::function<Tensor(Net&, const Tensor&)>;
  Forward forward;
  torch::nn::Linear layer{kWidth, kWidth}, other{kWidth, kWidth};
  Tensor scale, count;
  explicit Net(Forward of) : forward(std::move(of)) {
    nets::register_all(*this, "layer", layer, "other", other);
    scale = register_parameter("scale", torch::ones({kWidth}));
    count = register_buffer("count", torch::ones({kWidth}));
    for (auto& parameter : parameters()) parameter.data().normal_();
  }
  Tensors run(const Tensors& in) override { return {forward(*this, in[0])}; }
  Tensors arguments(std::int64_t n) override { return {torch::randn({n, 4, kWidth})}; }
};

Tensors trained(Net& net, const OpGraph& graph, const Tensors& in) {
  replay::Replayer replayer(graph, replay::all_ops(graph), graph.outputs, at::kCPU);
  auto environment = replayer.environment();
  replay::bind_state(graph, net, environment);
  environment[graph.inputs.front().index()] = in[0];
  net.count.fill_(1);
  replayer.run(environment, {in[0].size(0), in[0].size(0)});
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
  std::vector<std::size_t> joined;  ///< operators of each group
};

const std::vector<Form>& forms() {
  static const std::vector<Form> all{
      {"a gate", [](Net& n, const Tensor& x) { return torch::silu(n.layer(x)) * n.other(x); }, {2}},
      {"a scaled residual", [](Net& n, const Tensor& x) { return x + n.scale * n.layer(x); }, {2}},
      {"casts between them",
       [](Net& n, const Tensor& x) {
         return (torch::sigmoid(n.layer(x).to(torch::kBFloat16)) * 2).to(torch::kFloat) + x;
       },
       {5}},
      {"a value that is read behind the group",
       [](Net& n, const Tensor& x) {
         const auto y = n.layer(x) * n.scale;
         return n.other(torch::tanh(y)) + y;
       },
       {2}},
      {"groups of two layers",
       [](Net& n, const Tensor& x) { return torch::relu(n.other(torch::relu(n.layer(x) + x)) + x); },
       {2, 2}},
      {"a value that is read between",
       [](Net& n, const Tensor& x) {
         const auto y = torch::tanh(n.layer(x));
         return y * n.other(y);
       },
       {}},
      {"parts of one layer",
       [](Net& n, const Tensor& x) {
         const auto parts = n.layer(x).chunk(2, -1);
         return torch::cat({torch::gelu(parts[0]) * parts[1], parts[0]}, -1);
       },
       {2}},
      {"a mask", [](Net& n, const Tensor& x) { return n.layer(x).masked_fill(x > 0, -2) * n.scale; }, {2}},
      {"in place",
       [](Net& n, const Tensor& x) {
         auto y = n.layer(x) + x;
         y.add_(2);
         return y + x;
       },
       {}},
      {"an operand is written behind it",
       [](Net& n, const Tensor& x) {
         const auto y = torch::tanh(n.layer(x) + n.count);
         n.count.add_(1);
         return y;
       },
       {}},
      {"a result is written behind the group",
       [](Net& n, const Tensor& x) {
         auto y = (n.layer(x) + x) * 2;
         y += 1;
         return y;
       },
       {}},
      {"one without gradients",
       [](Net& n, const Tensor& x) {
         Tensor y;
         {
           const torch::NoGradGuard guard;
           y = n.other(x) * 2;
         }
         return n.layer(x) + y;
       },
       {}},
      {"integers", [](Net& n, const Tensor& x) { return n.layer(x) * (x.to(torch::kLong) + 1); }, {}},
      {"sums over samples", [](Net& n, const Tensor& x) { return (torch::tanh(n.layer(x).sum(0)) + x) * 2; }, {}},
      {"what no parameter is in", [](Net& n, const Tensor& x) { return n.layer(x) * torch::tanh(x); }, {}},
      {"weights alone", [](Net& n, const Tensor& x) { return torch::linear(x, torch::tanh(n.scale * 2).diag()); }, {}},
      {"another size",
       [](Net& n, const Tensor& x) { return torch::sigmoid(n.layer(x).mean(1, true)) * x.to(torch::kFloat); },
       {}}};
  return all;
}

}  // namespace pointwise_fold

TEST_CASE("joined_pointwise: fuses chains exactly", "[rewrite][pointwise]") {
  using namespace pointwise_fold;
  torch::manual_seed(22);
  for (const auto& form : forms()) {
    INFO(form.name);
    Net net(form.forward);
    const auto plain =
        trace::capture(net, specs(net.arguments(kSamples)), [&](const Tensors& in) { return net.run(in); });
    const auto joined = fused::joined_pointwise().pattern(plain);
    std::size_t groups = 0, operators = 0;
    for (std::size_t i = 0; i < joined.ops.size(); ++i)
      groups += joined.is(OpId::of(i), fused::kJoinedPointwise) ? 1 : 0;
    for (const auto each : form.joined) operators += each;
    CHECK(groups == form.joined.size());
    CHECK(joined.ops.size() + operators == plain.ops.size() + groups);
    CHECK((joined.hash() == plain.hash()) == form.joined.empty());
    for (const std::int64_t samples : {kSamples, std::int64_t{5}}) {
      const auto in = net.arguments(samples);
      const auto expected = trained(net, plain, in), made = trained(net, joined, in);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        INFO(i);
        CHECK(torch::allclose(made[i], expected[i], 1e-6, 1e-6));  // gradients of a sum are added in another order
      }
    }
    const auto plan = algebra::analyze_batch(joined, {}), before = algebra::analyze_batch(plain, {});
    CHECK(plan.values[joined.outputs.front().index()] == before.values[plain.outputs.front().index()]);
  }
}

}  // namespace autopar::test
