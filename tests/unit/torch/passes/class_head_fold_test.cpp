
#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "unit/torch/capture/models.hpp"

#include "capture/replay/replay.hpp"
#include "torch/fused/fused_ops.hpp"
#include "torch/fused/linear_cross_entropy.hpp"
#include "torch/passes/class_loss_fold.hpp"
#include "torch/passes/linear_fold.hpp"

namespace autopar::test {
namespace class_head_fold {

namespace F = torch::nn::functional;
using torch::Tensor;
using Loss = std::function<Tensors(const Tensor& logits, const Tensor& target)>;

constexpr std::int64_t kSamples = 5, kPlaces = 3, kWidth = 4, kClasses = 7;

struct Net : TestModel {
  Loss loss;
  torch::nn::Linear body{kWidth, kWidth}, head{nullptr};
  Net(Loss of, bool bias) : loss(std::move(of)), head(torch::nn::LinearOptions(kWidth, kClasses).bias(bias)) {
    nets::register_all(*this, "body", body, "head", head);
  }
  Tensors run(const Tensors& in) override { return loss(head(torch::tanh(body(in[0]))), in[1]); }
  Tensors arguments(std::int64_t n) override {
    return {torch::randn({n, kPlaces, kWidth}, torch::kDouble), torch::randint(kClasses, {n, kPlaces})};
  }
};

OpGraph captured(Net& net) {
  const auto graph =
      trace::capture(net, specs(net.arguments(kSamples)), [&](const Tensors& in) { return net.run(in); });
  return passes::fold_class_loss(passes::fold_linear(graph, at::kCPU));
}

bool has_head(const OpGraph& graph) {
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    if (graph.is(OpId::of(i), fused::kLinearCrossEntropy)) return true;
  }
  return false;
}

/// The result and the gradients of all parameters.
Tensors trained(Net& net, const OpGraph& graph, const Tensors& in) {
  replay::Replayer replayer(graph, replay::all_ops(graph), graph.outputs, at::kCPU);
  auto environment = replayer.environment();
  replay::bind_state(graph, net, environment);
  for (std::size_t i = 0; i < in.size(); ++i) environment[graph.inputs[i].index()] = in[i];
  replayer.run(environment, {kSamples, kSamples});
  const auto result = environment[graph.outputs.front().index()];
  net.zero_grad();
  (result * torch::arange(1, result.numel() + 1, result.options()).view_as(result)).sum().backward();
  Tensors out{result.detach()};
  for (const auto& parameter : net.parameters()) out.push_back(parameter.grad().clone());
  return out;
}

F::CrossEntropyFuncOptions options(const Tensor& like) {
  return F::CrossEntropyFuncOptions().weight(torch::linspace(0.5, 2, kClasses, like.options())).ignore_index(2);
}

}  // namespace class_head_fold

TEST_CASE("fused linear cross entropy: equal loss and gradients", "[rewrite]") {
  using namespace class_head_fold;
  torch::manual_seed(4);
  const std::vector<std::pair<std::string, Loss>> losses{
      {"mean",
       [](const Tensor& x, const Tensor& y) { return Tensors{F::cross_entropy(x.flatten(0, 1), y.flatten())}; }},
      {"sum, weights, a class that does not count",
       [](const Tensor& x, const Tensor& y) {
         return Tensors{F::cross_entropy(x.view({-1, kClasses}), y.view(-1), options(x).reduction(torch::kSum))};
       }},
      {"of each, smoothed",
       [](const Tensor& x, const Tensor& y) {
         return Tensors{F::cross_entropy(x.reshape({x.size(0) * kPlaces, kClasses}), y.flatten(),
                                         options(x).reduction(torch::kNone).label_smoothing(0.1))};
       }},
      {"of log-probabilities", [](const Tensor& x, const Tensor& y) {
         return Tensors{F::nll_loss(F::log_softmax(x.flatten(0, 1), 1), y.flatten())};
       }}};
  for (const auto& [name, loss] : losses) {
    for (const bool bias : {true, false}) {
      INFO(name << (bias ? ", bias" : ""));
      Net net(loss, bias);
      net.to(torch::kDouble);
      const auto whole = captured(net);
      const auto folded = fused::linear_cross_entropy().pattern(whole);
      REQUIRE(has_head(folded));
      CHECK(fused::bytes_of_chunked_logits(whole, 2) == 2 * kPlaces * kClasses * 8);
      CHECK(fused::bytes_of_chunked_logits(folded, 2) == 0);
      const auto in = net.arguments(kSamples);
      const auto expected = trained(net, whole, in), made = trained(net, folded, in);
      for (std::size_t i = 0; i < expected.size(); ++i) CHECK(torch::allclose(made[i], expected[i], 1e-12, 1e-12));
    }
  }
}

TEST_CASE("fused linear cross entropy: not for other readers or kinds", "[rewrite]") {
  using namespace class_head_fold;
  const std::vector<std::pair<std::string, Loss>> losses{
      {"logits that are a result",
       [](const Tensor& x, const Tensor& y) {
         return Tensors{F::cross_entropy(x.flatten(0, 1), y.flatten()), x};
       }},
      {"logits that something else reads",
       [](const Tensor& x, const Tensor& y) {
         return Tensors{F::cross_entropy(x.flatten(0, 1), y.flatten()) + x.pow(2).mean()};
       }},
      {"classes in dim 1 of three",
       [](const Tensor& x, const Tensor& y) { return Tensors{F::cross_entropy(x.transpose(1, 2), y)}; }},
      {"probabilities",
       [](const Tensor& x, const Tensor&) {
         return Tensors{
             F::cross_entropy(x.flatten(0, 1), torch::full({x.size(0) * kPlaces, kClasses}, 0.2, x.options()))};
       }},
      {"logits changed in place",
       [](const Tensor& x, const Tensor& y) {
         return Tensors{F::cross_entropy(x.flatten(0, 1).mul_(0.5), y.flatten())};
       }},
      {"another order of rows", [](const Tensor& x, const Tensor& y) {
         return Tensors{F::cross_entropy(x.transpose(0, 1).flatten(0, 1), y.t().flatten())};
       }}};
  for (const auto& [name, loss] : losses) {
    INFO(name);
    Net net(loss, true);
    net.to(torch::kDouble);
    const auto whole = captured(net);
    CHECK_FALSE(has_head(fused::linear_cross_entropy().pattern(whole)));
    CHECK(fused::bytes_of_chunked_logits(whole, 2) == 0);
  }
}

}  // namespace autopar::test
