#include "torch/passes/class_loss_fold.hpp"

#include <torch/torch.h>

#include <catch_shim.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ops/rules.hpp"
#include "unit/torch/capture/models.hpp"

#include "capture/replay/replay.hpp"
#include "ops/cross_entropy.hpp"
#include "torch/fused/fused_ops.hpp"
#include "torch/passes/linear_fold.hpp"

namespace autopar::test {
namespace class_loss_fold {

namespace F = torch::nn::functional;
using torch::Tensor;

constexpr std::int64_t kSamples = 6, kClasses = 5;

struct Head : TestModel {
  std::function<Tensor(const Tensor&, const Tensor&)> loss;
  torch::nn::Linear layer{4, kClasses};
  explicit Head(std::function<Tensor(const Tensor&, const Tensor&)> of) : loss(std::move(of)) {
    register_module("layer", layer);
  }
  Tensors run(const Tensors& in) override { return {loss(layer(in[0]), in[1])}; }
  Tensors arguments(std::int64_t n) override { return {torch::randn({n, 3, 4}), torch::randint(kClasses, {n, 3})}; }
};

std::size_t count(const OpGraph& graph, const std::string& name) {
  std::size_t n = 0;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) n += graph.is(OpId::of(i), name);
  return n;
}

OpGraph captured(Head& head) {
  return trace::capture(head, specs(head.arguments(kSamples)), [&](const Tensors& in) { return head.run(in); });
}

Tensors result_and_gradient(Head& head, const OpGraph& graph, const Tensors& in) {
  replay::Replayer replayer(graph, replay::all_ops(graph), graph.outputs, at::kCPU);
  auto environment = replayer.environment();
  replay::bind_state(graph, head, environment);
  for (std::size_t i = 0; i < in.size(); ++i) environment[graph.inputs[i].index()] = in[i];
  replayer.run(environment, {kSamples, kSamples});
  const auto result = environment[graph.outputs.front().index()];
  head.zero_grad();
  result.sum().backward();
  return {result.detach(), head.layer->weight.grad().clone()};
}

}  // namespace class_loss_fold

TEST_CASE("class_loss_fold: nll of log_softmax becomes cross entropy", "[rewrite]") {
  using namespace class_loss_fold;
  torch::manual_seed(2);
  const auto weight = torch::linspace(0.5, 2, kClasses);
  const std::vector<std::pair<std::string, std::function<Tensor(const Tensor&, const Tensor&)>>> folded{
      {"mean",
       [](const Tensor& x, const Tensor& y) { return F::nll_loss(F::log_softmax(x.flatten(0, 1), 1), y.flatten()); }},
      {"sum, weights, a class that does not count",
       [=](const Tensor& x, const Tensor& y) {
         return F::nll_loss(torch::log_softmax(x.flatten(0, 1), -1), y.flatten(),
                            F::NLLLossFuncOptions().weight(weight).ignore_index(2).reduction(torch::kSum));
       }},
      {"of each, classes in dim 1 of three",
       [](const Tensor& x, const Tensor& y) {
         return F::nll_loss(x.transpose(1, 2).log_softmax(1), y, F::NLLLossFuncOptions().reduction(torch::kNone));
       }},
      {"images",
       [](const Tensor& x, const Tensor& y) {
         return torch::nll_loss2d(x.transpose(1, 2).unsqueeze(3).log_softmax(1), y.unsqueeze(2));
       }},
      {"logits overwritten afterwards",
       [](const Tensor& x, const Tensor& y) {
         auto logits = x.flatten(0, 1);
         const auto loss = torch::nll_loss(torch::log_softmax(logits, 1), y.flatten());
         return loss + logits.relu_().sum();
       }},
  };
  for (const auto& [name, loss] : folded) {
    INFO(name);
    Head head(loss);
    const auto graph = captured(head), after = passes::fold_class_loss(graph);
    CHECK(count(after, "aten::cross_entropy_loss") == 1);
    CHECK(after.ops.size() == graph.ops.size() - 1);
    const auto in = head.arguments(kSamples);
    const auto wanted = result_and_gradient(head, graph, in), got = result_and_gradient(head, after, in);
    CHECK(torch::equal(got[0], wanted[0]));
    CHECK(torch::equal(got[1], wanted[1]));
  }
}

TEST_CASE("class_loss_fold: other log-probabilities stay", "[rewrite]") {
  using namespace class_loss_fold;
  const std::vector<std::pair<std::string, std::function<Tensor(const Tensor&, const Tensor&)>>> others{
      {"read by others",
       [](const Tensor& x, const Tensor& y) {
         const auto logs = torch::log_softmax(x.flatten(0, 1), 1);
         return F::nll_loss(logs, y.flatten()) + (logs.exp() * logs).sum();
       }},
      {"over other dims",
       [](const Tensor& x, const Tensor& y) {
         return F::nll_loss(torch::log_softmax(x, 1).flatten(0, 1), y.flatten());
       }},
      {"over positions, classes behind",
       [](const Tensor& x, const Tensor& y) { return F::nll_loss(x.transpose(1, 2).log_softmax(2), y); }},
      {"of another type",
       [](const Tensor& x, const Tensor& y) {
         return F::nll_loss(torch::log_softmax(x.flatten(0, 1), 1, torch::kDouble), y.flatten());
       }},
      {"logits overwritten in between",
       [](const Tensor& x, const Tensor& y) {
         auto logits = x.flatten(0, 1);
         const auto logs = torch::log_softmax(logits, 1);
         logits.relu_();
         return torch::nll_loss(logs, y.flatten()) + logits.sum();
       }},
      {"without gradient",
       [](const Tensor& x, const Tensor& y) {
         Tensor logs;
         {
           const torch::NoGradGuard no_grad;
           logs = torch::log_softmax(x.flatten(0, 1), 1);
         }
         return torch::nll_loss(logs, y.flatten()) + x.sum();
       }},
  };
  for (const auto& [name, loss] : others) {
    INFO(name);
    Head head(loss);
    const auto graph = captured(head);
    CHECK(passes::fold_class_loss(graph).hash() == graph.hash());
  }
}

TEST_CASE("class_loss_fold: 16-bit logits need no fp32 copy", "[rewrite]") {
  using namespace class_loss_fold;
  struct Form {
    std::string name;
    std::function<Tensor(const Tensor&, const Tensor&)> loss;
    std::size_t losses, casts;  ///< joined; left
    bool in_place;              ///< whether the gradient takes the logits' memory
  };
  const auto weight = torch::linspace(0.5, 2, kClasses);
  const auto low = [](const Tensor& x) { return x.flatten(0, 1).to(torch::kBFloat16); };
  const std::vector<Form> forms{
      {"cast",
       [=](const Tensor& x, const Tensor& y) { return F::cross_entropy(low(x).to(torch::kFloat), y.flatten()); }, 1, 1,
       true},
      {"sum, weights, a class that does not count",
       [=](const Tensor& x, const Tensor& y) {
         return F::cross_entropy(low(x).to(torch::kFloat), y.flatten(),
                                 F::CrossEntropyFuncOptions().weight(weight).ignore_index(2).reduction(torch::kSum));
       },
       1, 1, true},
      {"a view of what was cast",
       [=](const Tensor& x, const Tensor& y) {
         return F::cross_entropy(x.to(torch::kBFloat16).flatten(0, 1).to(torch::kFloat), y.flatten());
       },
       1, 1, true},
      {"single precision",
       [](const Tensor& x, const Tensor& y) { return F::cross_entropy(x.flatten(0, 1), y.flatten()); }, 1, 0, true},
      {"logits that something else reads",
       [=](const Tensor& x, const Tensor& y) {
         const auto logits = low(x);
         return F::cross_entropy(logits.to(torch::kFloat), y.flatten()) + logits.sum();
       },
       1, 1, false},
      {"copies that something else reads",
       [=](const Tensor& x, const Tensor& y) {
         const auto logits = low(x).to(torch::kFloat);
         return F::cross_entropy(logits, y.flatten()) + logits.sum();
       },
       1, 2, false},
      {"smoothing",
       [=](const Tensor& x, const Tensor& y) {
         return F::cross_entropy(low(x).to(torch::kFloat), y.flatten(),
                                 F::CrossEntropyFuncOptions().label_smoothing(0.1));
       },
       0, 2, false},
      {"classes in dim 1 of three",
       [](const Tensor& x, const Tensor& y) { return F::cross_entropy(x.transpose(1, 2), y); }, 0, 0, false},
      {"in 16 bits", [=](const Tensor& x, const Tensor& y) { return F::cross_entropy(low(x), y.flatten()); }, 0, 1,
       false},
      {"logits overwritten in between",
       [=](const Tensor& x, const Tensor& y) {
         auto logits = low(x);
         const auto wide = logits.to(torch::kFloat);
         logits.zero_();
         return F::cross_entropy(wide, y.flatten()) + logits.sum();
       },
       1, 2, true}};
  for (const auto& form : forms) {
    INFO(form.name);
    Head head(form.loss);
    const auto graph = passes::fold_linear(captured(head)), after = fused::cross_entropy_loss().pattern(graph);
    CHECK(count(after, std::string(fused::kCrossEntropy)) == form.losses);
    CHECK(count(after, "aten::to") + count(after, "aten::_to_copy") == form.casts);
    for (std::size_t i = 0; i < after.ops.size(); ++i) {
      if (after.is(OpId::of(i), fused::kCrossEntropy))
        CHECK(ops::is_last_reader(after, OpId::of(i), 0) == form.in_place);
    }
    const auto in = head.arguments(kSamples);
    const auto wanted = result_and_gradient(head, graph, in), got = result_and_gradient(head, after, in);
    CHECK(torch::equal(got[0], wanted[0]));
    CHECK(torch::equal(got[1], wanted[1]));
  }
}

}  // namespace autopar::test
