#include "capture/replay/replay.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/utils.h>

#include <autopar/core/error.hpp>
#include <catch_shim.hpp>

#include "unit/torch/capture/models.hpp"

namespace autopar::test {
namespace {

struct Outcome {
  Tensors results, parameter_gradients, argument_gradients, buffers;
};

Tensors copies(const Tensors& tensors) {
  Tensors result;
  for (const auto& tensor : tensors) result.push_back(tensor.defined() ? tensor.detach().clone() : tensor);
  return result;
}

/// Runs `forward` and one backward of all differentiable results; leaves gradients and buffers as they were.
Outcome observe(TestModel& model, Tensors arguments, const std::function<Tensors(const Tensors&)>& forward) {
  const auto buffers_before = copies(model.buffers());
  for (auto& argument : arguments) {
    if (argument.requires_grad()) argument = argument.detach().clone().set_requires_grad(true);
  }
  torch::manual_seed(99);
  auto results = forward(arguments);
  Outcome outcome;
  outcome.results = copies(results);
  at::Tensor total;
  for (const auto& result : results) {
    if (!result.requires_grad()) continue;
    auto term = (result.to(torch::kDouble) * 1.5).sum();
    total = total.defined() ? total + term : term;
  }
  if (total.defined()) total.backward();
  for (auto& parameter : model.parameters()) outcome.parameter_gradients.push_back(parameter.grad());
  for (auto& argument : arguments) outcome.argument_gradients.push_back(argument.grad());
  outcome.parameter_gradients = copies(outcome.parameter_gradients);
  outcome.argument_gradients = copies(outcome.argument_gradients);
  outcome.buffers = copies(model.buffers());
  model.zero_grad();
  const torch::NoGradGuard no_grad;
  auto buffers = model.buffers();
  for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(buffers_before[i]);
  return outcome;
}

void require_equal(const Tensors& eager, const Tensors& replayed, const std::string& what) {
  REQUIRE(eager.size() == replayed.size());
  for (std::size_t i = 0; i < eager.size(); ++i) {
    INFO(what << " " << i);
    REQUIRE(eager[i].defined() == replayed[i].defined());
    if (!eager[i].defined()) continue;
    REQUIRE(eager[i].scalar_type() == replayed[i].scalar_type());
    REQUIRE(torch::equal(eager[i], replayed[i]));
  }
}

void require_replay_equals_eager(TestModel& model) {
  const auto graph = capture_model(model);
  replay::Replayer replayer(graph, replay::all_ops(graph), graph.outputs, at::kCPU);
  for (const std::int64_t batch : {5, 2, 8}) {
    INFO("batch " << batch);
    torch::manual_seed(7);
    const auto arguments = model.arguments(batch);
    const auto eager = observe(model, arguments, [&](const Tensors& in) { return model.run(in); });
    const auto replayed = observe(model, arguments, [&](const Tensors& in) {
      auto environment = replayer.environment();
      replay::bind_state(graph, model, environment);
      for (std::size_t i = 0; i < in.size(); ++i) environment[graph.inputs[i].index()] = in[i];
      replayer.run(environment, {batch, batch});
      Tensors results;
      for (const auto output : graph.outputs) results.push_back(environment[output.index()]);
      return results;
    });
    require_equal(eager.results, replayed.results, "result");
    require_equal(eager.parameter_gradients, replayed.parameter_gradients, "gradient of parameter");
    require_equal(eager.argument_gradients, replayed.argument_gradients, "gradient of argument");
    require_equal(eager.buffers, replayed.buffers, "buffer");
  }
}

template <class Model>
void check() {
  torch::manual_seed(1);
  auto model = std::make_shared<Model>();
  require_replay_equals_eager(*model);
  model->eval();
  require_replay_equals_eager(*model);
}

}  // namespace

TEST_CASE("replay: MLP equals eager bitwise", "[replay]") { check<Mlp>(); }
TEST_CASE("replay: ResNet equals eager bitwise, buffers included", "[replay]") { check<ResNet>(); }
TEST_CASE("replay: transformer equals eager bitwise, dropout included", "[replay]") { check<Transformer>(); }
TEST_CASE("replay: LSTM equals eager bitwise", "[replay]") { check<Lstm>(); }
TEST_CASE("replay: in-place, view, list, index operators equal eager", "[replay]") { check<Mixed>(); }
TEST_CASE("replay: embedding with several results equals eager", "[replay]") { check<Embedded>(); }
TEST_CASE("replay: autocast equals eager bitwise", "[replay]") { check<Autocast>(); }

TEST_CASE("replay: unusual ways to make and change tensors equal eager", "[replay]") {
  const auto require = [](auto function) {
    torch::manual_seed(1);
    require_replay_equals_eager(*model_of(function));
  };
  using at::Tensor;
  SECTION("data") {
    require([](Tensor y, Tensor) { return (y * y.data()).sum(); });
  }
  SECTION("variable_data") {
    require([](Tensor y, Tensor) { return (y * y.variable_data()).sum(); });
  }
  SECTION("detach") {
    require([](Tensor y, Tensor) { return (y * y.detach()).sum(); });
  }
  SECTION("rand_like, bernoulli_") {
    require([](Tensor y, Tensor) { return (y * torch::rand_like(y) * torch::empty_like(y).bernoulli_(0.5)).sum(); });
  }
  SECTION("out variants") {
    require([](Tensor y, Tensor) {
      auto out = torch::empty({0});
      const torch::NoGradGuard no_grad;
      torch::mul_out(out, y, y);
      return out.sum() + y.sum();
    });
  }
  SECTION("in-place reshapes") {
    require([](Tensor y, Tensor) {
      auto z = y.clone();
      z.unsqueeze_(0);
      z.squeeze_(0);
      z.t_();
      return z.sum(0).pow(2).sum();
    });
  }
  SECTION("raw writes") {
    require([](Tensor y, Tensor) {
      auto w = torch::empty({8});
      for (int i = 0; i < 8; ++i) w.data_ptr<float>()[i] = static_cast<float>(i);
      return (y * w).sum();
    });
  }
  SECTION("einsum, attention, gather") {
    require([](Tensor y, Tensor) {
      auto q = y.view({-1, 2, 2, 2});
      return torch::einsum("ij,kj->ik", {y, y}).sum() + at::scaled_dot_product_attention(q, q, q).pow(2).sum() +
             y.gather(1, torch::zeros({y.size(0), 1}, torch::kLong)).sum();
    });
  }
  SECTION("operators that look data-dependent") {
    require([](Tensor y, Tensor) {
      auto picked = y.index({torch::indexing::Slice(), torch::tensor({1, 3})});
      auto masked = y.clone().index_put_({y > 0}, torch::tensor(0.5f));
      return y.repeat_interleave(2, 1).sum() + picked.sum() + masked.sum() + torch::one_hot(y.argmax(1), 8).sum() +
             y.masked_scatter(y > 0, y * 2).sum();
    });
  }
  SECTION("in place into a fresh tensor") {
    require([](Tensor y, Tensor) {
      auto sum = torch::zeros_like(y);
      sum.add_(y).mul_(2.0);
      return sum.sum();
    });
  }
  SECTION("losses and activations without C++ shape rules") {
    require([](Tensor y, Tensor x) {
      namespace F = torch::nn::functional;
      return F::binary_cross_entropy(torch::sigmoid(y), torch::sigmoid(x)) + F::smooth_l1_loss(y, x) +
             F::huber_loss(y, x) + F::logsigmoid(y).sum() + F::hardtanh(y).sum() + torch::hardswish(y).sum() +
             y.flip(1).prod() + y.roll(1, 1).min() + y.std(1).sum() + torch::cumsum(y, 1).sum() + y.norm() +
             F::kl_div(torch::log_softmax(y, 1), torch::softmax(x, 1), F::KLDivFuncOptions(torch::kSum)) +
             torch::logsumexp(y, 1).sum() + F::hardtanh(y).add_(1.0).sum() + F::cosine_similarity(y, x).sum();
    });
  }
  SECTION("a result that no operator made") {
    require([](Tensor, Tensor x) { return x; });
  }
}

TEST_CASE("Replayer: a handler may scale, replace or call the operator", "[replay]") {
  auto model = model_of([](at::Tensor y, at::Tensor) { return y.exp().sum(); });
  const auto graph = capture_model(*model);
  const auto ops = replay::all_ops(graph);
  replay::Replayer replayer(graph, ops, graph.outputs, at::kCPU);
  const auto x = torch::randn({3, 8});
  const auto run = [&] {
    auto environment = replayer.environment();
    replay::bind_state(graph, *model, environment);
    environment[graph.inputs[0].index()] = x;
    replayer.run(environment, {3, 3});
    return environment[graph.outputs[0].index()].item<float>();
  };
  const float plain = run();
  replayer.handle(ops.back(), [](replay::ReplayCall& call) {
    call.call_original();
    call.stack.back() = call.stack.back().toTensor() * 0.5;
  });
  REQUIRE(run() == plain * 0.5f);
  replayer.handle(ops.back(), [](replay::ReplayCall& call) {
    call.stack.clear();
    call.stack.emplace_back(torch::tensor(42.0f));
  });
  REQUIRE(run() == 42.0f);
  REQUIRE_THROWS_AS(replay::Replayer(graph, {ops[0]}, {}, at::kCPU).handle(ops[1], {}), InvalidArgument);
}

TEST_CASE("Replayer: parts of a graph in sequence equal the graph", "[replay]") {
  torch::manual_seed(3);
  Mlp model;
  const auto graph = capture_model(model);
  const auto in = model.arguments(6);
  const auto eager = model.run(in)[0];
  for (std::size_t cut = 1; cut < graph.ops.size(); ++cut) {
    const auto ops = replay::all_ops(graph);
    const auto place = ops.begin() + static_cast<std::ptrdiff_t>(cut);
    replay::Replayer second(graph, {place, ops.end()}, graph.outputs, at::kCPU);
    replay::Replayer first(graph, {ops.begin(), place}, second.required(), at::kCPU);
    auto environment = first.environment();
    replay::bind_state(graph, model, environment);
    for (std::size_t i = 0; i < in.size(); ++i) environment[graph.inputs[i].index()] = in[i];
    first.run(environment, {6, 6});
    auto other = second.environment();
    for (const auto value : second.required()) {
      REQUIRE(environment[value.index()].defined());
      other[value.index()] = environment[value.index()];
    }
    second.run(other, {6, 6});
    REQUIRE(torch::equal(eager, other[graph.outputs[0].index()]));
  }
}

}  // namespace autopar::test
