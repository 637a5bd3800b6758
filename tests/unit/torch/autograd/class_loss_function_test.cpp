#include "torch/autograd/class_loss_function.hpp"

#include <limits>
#include <vector>

#include <torch/torch.h>

#include <catch_shim.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "capture/trace/capture.hpp"
#include "ops/rules.hpp"
#include "torch/interpret/op_interpreter.hpp"

namespace autopar::test {
namespace class_loss_function_test {

using Tensors = std::vector<at::Tensor>;
namespace F = torch::nn::functional;

struct Classifier : torch::nn::Module {
  explicit Classifier(F::CrossEntropyFuncOptions given) : options(std::move(given)) {
    scale = register_parameter("scale", torch::ones({}, torch::kDouble));
  }
  at::Tensor forward(const at::Tensor& logits, const at::Tensor& target) {
    return F::cross_entropy(logits * scale, target, options);
  }
  F::CrossEntropyFuncOptions options;
  at::Tensor scale;
};

struct Replayed {
  OpGraph graph;
  bool in_place = false;
  at::Tensor loss;
};

Replayed replayed(Classifier& net, const at::Tensor& logits, const at::Tensor& target) {
  Replayed out;
  out.graph = trace::capture(net, {trace::input_spec(logits), trace::input_spec(target)},
                             [&](const Tensors& in) -> Tensors { return {net.forward(in[0], in[1])}; });
  for (std::size_t i = 0; i < out.graph.ops.size(); ++i)
    out.in_place = out.in_place || ops::gradient_place(out.graph, OpId::of(i)) != GradientPlace::kNew;
  const auto plan = algebra::analyze_batch(out.graph);
  interpret::OpInterpreter runner(out.graph, plan, replay::all_ops(out.graph), out.graph.outputs, c10::kCPU);
  auto values = runner.environment();
  replay::bind_state(out.graph, net, values);
  values[out.graph.inputs[0].index()] = logits;
  values[out.graph.inputs[1].index()] = target;
  interpret::SliceContext slice;
  slice.samples = slice.batch = logits.size(0);
  std::vector<at::Tensor> counts(plan.counts.size(), torch::ones({}, torch::kDouble));
  slice.counts = &counts;
  std::vector<interpret::NormSample> norms;
  runner.run(values, slice, norms);
  out.loss = values[out.graph.outputs[0].index()];
  return out;
}

/// The replayed sum, or losses, and their gradient against libtorch's.
void require_same(F::CrossEntropyFuncOptions options, const at::Tensor& logits, const at::Tensor& target,
                  bool in_place = true) {
  Classifier net(options);
  const auto theirs = logits.detach().clone().set_requires_grad(true),
             ours = logits.detach().clone().set_requires_grad(true);
  auto summed = options;
  if (std::holds_alternative<torch::enumtype::kMean>(summed.reduction()))
    summed.reduction(torch::kSum);  // a plan divides
  const auto expected = F::cross_entropy(theirs * net.scale, target, summed);
  const auto weights = torch::rand(expected.sizes(), torch::kDouble);
  const auto reference = torch::autograd::grad({(expected * weights).sum()}, {theirs, net.scale});
  const auto found = replayed(net, ours, target);
  REQUIRE(found.in_place == in_place);
  REQUIRE(torch::allclose(found.loss, expected, 0, 1e-13));
  const auto kept = torch::autograd::grad({(found.loss * weights).sum()}, {ours, net.scale}, {}, /*retain_graph=*/true);
  const auto last = torch::autograd::grad({(found.loss * weights).sum()}, {ours, net.scale});
  for (const auto& gradients : {kept, last}) {
    for (std::size_t i = 0; i < 2; ++i)
      CHECK(torch::allclose(gradients[i], reference[i], 0, 1e-13, /*equal_nan=*/true));
  }
}

TEST_CASE("class_loss_function: in-place gradient equals libtorch's") {
  torch::manual_seed(3);
  const auto logits = torch::randn({7, 5}, torch::kDouble) * 4, images = torch::randn({3, 5, 2, 4}, torch::kDouble);
  const auto target = torch::randint(5, {7}), pixels = torch::randint(5, {3, 2, 4});
  auto ignoring = target.clone(), ignoring_all = torch::full({7}, -100);
  ignoring[2] = ignoring[5] = -100;
  auto ignored_pixels = pixels.clone();
  ignored_pixels[1][0][2] = 3;
  const auto weight = torch::rand({5}, torch::kDouble) + 0.2;
  for (const auto& reduction :
       {F::CrossEntropyFuncOptions::reduction_t(torch::kSum), F::CrossEntropyFuncOptions::reduction_t(torch::kMean),
        F::CrossEntropyFuncOptions::reduction_t(torch::kNone)}) {
    F::CrossEntropyFuncOptions plain;
    plain.reduction(reduction);
    for (const auto& to : {target, ignoring, ignoring_all}) require_same(plain, logits, to);
    require_same(F::CrossEntropyFuncOptions(plain).weight(weight), logits, ignoring);
    require_same(F::CrossEntropyFuncOptions(plain).weight(weight).ignore_index(3), images, ignored_pixels);
  }
}

TEST_CASE("class_loss_function: other targets keep libtorch's autograd") {
  torch::manual_seed(4);
  const auto logits = torch::randn({6, 4}, torch::kDouble);
  require_same(F::CrossEntropyFuncOptions().reduction(torch::kNone).label_smoothing(0.1), logits,
               torch::randint(4, {6}), false);
  require_same(F::CrossEntropyFuncOptions().reduction(torch::kNone), logits, torch::rand({6, 4}, torch::kDouble),
               false);
}

TEST_CASE("class_loss_function: logits of -inf give equal gradients") {
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  const auto logits = torch::tensor({{0.0, kNever, 1.0}, {2.0, 0.5, kNever}}, torch::kDouble);
  require_same(F::CrossEntropyFuncOptions().reduction(torch::kNone), logits, torch::tensor({0, 1}));
}

}  // namespace class_loss_function_test
}  // namespace autopar::test
