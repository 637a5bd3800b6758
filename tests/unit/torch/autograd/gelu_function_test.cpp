#include "torch/autograd/gelu_function.hpp"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>

#include "capture/trace/capture.hpp"
#include "torch/fused/bias_gradient.hpp"
#include "torch/interpret/op_interpreter.hpp"
#include "torch/passes/linear_fold.hpp"

// Sums over the rows of a gradient, from the kernel that wrote it to the linear layer that gets it.
namespace gelu_function_test {

using namespace autopar;
using torch::Tensor;
namespace F = torch::nn::functional;

OpId op_named(const OpGraph& graph, const char* name) {
  for (const auto op : replay::all_ops(graph))
    if (graph.is(op, name)) return op;
  FAIL("no " << name);
  return OpId::none();
}

/// A layer of 16-bit casts, whose backward is in two parts, and what has read its result.
struct Layer {
  explicit Layer(const std::string& approximate = "none") {
    const auto cast = [](const Tensor& tensor) { return tensor.to(torch::kBFloat16); };
    graph = passes::fold_linear(trace::capture(net, {trace::input_spec(x)}, [&](const std::vector<Tensor>& in) {
      return std::vector<Tensor>{torch::gelu(F::linear(cast(in[0]), cast(net.p[0]), cast(net.p[1])), approximate)};
    }));
    plan = algebra::analyze_batch(graph, {});
  }
  /// The layer's result.
  Tensor run() const {
    const auto gelu = op_named(graph, "aten::gelu");
    const auto result = graph.input(gelu, 0);
    auto ops = replay::all_ops(graph);
    std::erase(ops, gelu);
    runners.push_back(std::make_unique<interpret::OpInterpreter>(graph, plan, ops, std::vector{result}, at::kCPU));
    auto environment = runners.back()->environment();
    replay::bind_state(graph, net, environment);
    environment[graph.inputs[0].index()] = x;
    interpret::SliceContext slice;
    slice.samples = slice.batch = x.size(0);
    std::vector<interpret::NormSample> norms;
    runners.back()->run(environment, slice, norms);
    return environment[result.index()];
  }
  /// GELU of it with the history under test.
  Tensor gelu_of(const Tensor& result,
                 void (*proceed)(replay::ReplayCall&) = &autograd::run_gelu_with_bias_gradient) const {
    const auto op = op_named(graph, "aten::gelu");
    replay::Environment none;
    torch::jit::Stack stack{result, graph.op(op).args.at(1)};
    replay::ReplayCall call{op, graph.op(op), {x.size(0), x.size(0)}, stack, none};
    proceed(call);
    return stack.at(0).toTensor();
  }
  Tensor take_gradient_of_bias() { return std::exchange(net.p[1].mutable_grad(), Tensor()); }

  nets::Parameters net{{{6, 4}, {6}}, torch::kFloat};  // weight and bias
  Tensor x = torch::randn({5, 3, 4}).requires_grad_();
  OpGraph graph;
  algebra::BatchSemantics plan;
  mutable std::vector<std::unique_ptr<interpret::OpInterpreter>> runners;  ///< histories refer to them
};

Tensor gradient_like(const Tensor& result) { return torch::randint(-4, 5, result.sizes(), result.options()); }
/// What no row sums to.
Tensor marked() { return torch::arange(100, 106, torch::kFloat); }

TEST_CASE("bias-gradient epilogue: its sums become the bias gradient") {
  torch::manual_seed(1);
  Layer layer;
  for (int times = 1; times <= 2; ++times) {
    const auto result = layer.run();
    const auto gradient = gradient_like(result);
    fused::attach_bias_gradient(gradient, marked());
    result.backward(gradient);
    CHECK(torch::equal(layer.net.p[1].grad(), marked() * times));
  }
}

TEST_CASE("bias-gradient epilogue: unused once the gradient has changed") {
  torch::manual_seed(2);
  Layer layer;
  const std::vector<std::function<Tensor(const Tensor&)>> changes{
      [](const Tensor& gradient) { return gradient.mul_(2); },
      [](const Tensor& gradient) {
        gradient.view({-1}).narrow(0, 3, 2).zero_();  // through a view
        return gradient;
      },
      [](const Tensor& gradient) { return gradient * 2; },
      [](const Tensor& gradient) { return gradient.view(gradient.sizes()); },
      [](const Tensor& gradient) { return gradient.detach(); },
      [](const Tensor& gradient) { return gradient.tensor_data(); },  // it counts versions of its own
      [](const Tensor& gradient) {
        CHECK(torch::equal(fused::take_bias_gradient(gradient), marked()));  // once
        return gradient;
      },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    INFO("change " << i);
    const auto result = layer.run();
    auto gradient = gradient_like(result);
    fused::attach_bias_gradient(gradient, marked());
    gradient = changes[i](gradient);
    result.backward(gradient);
    CHECK(torch::equal(layer.take_gradient_of_bias(), gradient.to(torch::kFloat).flatten(0, 1).sum(0)));
  }
}

/// Its gradient is a tensor that nobody else holds, with sums that are not its own.
struct Marking : torch::autograd::Function<Marking> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list given) {
    auto gradient = given[0].clone();
    fused::attach_bias_gradient(gradient, marked());
    return {std::move(gradient)};
  }
};

TEST_CASE("bias-gradient epilogue: unused if autograd adds gradients") {
  torch::manual_seed(3);
  Layer layer;
  for (const bool keeps : {false, true}) {  // whether autograd may add in place
    for (const bool both : {false, true}) {
      const auto result = layer.run();
      const auto first = Marking::apply(result);
      const auto second = both ? Marking::apply(result) : result * 1;
      const auto gradient = gradient_like(result);
      Tensor arrived;
      result.register_hook([&](const Tensor& all) {
        arrived = all.clone();
        return Tensor();
      });
      torch::autograd::backward({first, second}, {gradient, gradient * 2}, keeps);
      CHECK(torch::equal(arrived, gradient * 3));
      CHECK(torch::equal(layer.take_gradient_of_bias(), (gradient * 3).to(torch::kFloat).flatten(0, 1).sum(0)));
    }
  }
}

/// The same gradient, one tensor, to both.
struct ToBoth : torch::autograd::Function<ToBoth> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x, const Tensor& y) { return x + y; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list given) {
    const auto gradient = given[0].clone();
    fused::attach_bias_gradient(gradient, marked());
    return {gradient, gradient};
  }
};

TEST_CASE("bias-gradient epilogue: used once for two readers") {
  torch::manual_seed(5);
  const auto sums_of = [](const Tensor& gradient) { return gradient.to(torch::kFloat).flatten(0, 1).sum(0); };
  SECTION("two layers") {
    Layer one, other;
    const auto left = one.run(), right = other.run();
    const auto gradient = gradient_like(left);
    ToBoth::apply(left, right).backward(gradient);
    const auto of_one = one.take_gradient_of_bias(), of_other = other.take_gradient_of_bias();
    const bool is_one = torch::equal(of_one, marked());
    CHECK(torch::equal(is_one ? of_one : of_other, marked()));
    CHECK(torch::equal(is_one ? of_other : of_one, sums_of(gradient)));
  }
  SECTION("a layer, and what autograd adds another gradient to") {
    for (const bool late : {false, true}) {  // which of the two gradients comes first
      Layer layer;
      const auto shortcut = torch::randn({5, 3, 6}, torch::kBFloat16).requires_grad_();
      const auto copy = shortcut * 1;
      const auto early = copy * 2;
      const auto result = layer.run();
      const auto sum = ToBoth::apply(result, copy);
      const auto second = late ? early : copy * 2;
      const auto gradient = gradient_like(sum);
      Tensor arrived;
      result.register_hook([&](const Tensor& all) {
        arrived = all.clone();
        return Tensor();
      });
      torch::autograd::backward({sum, second}, {gradient, gradient});
      CHECK(torch::equal(arrived, gradient));
      CHECK(torch::equal(shortcut.grad(), gradient * 3));
      CHECK(torch::equal(layer.take_gradient_of_bias(), marked()));
    }
  }
}

TEST_CASE("gelu_function: result and gradients equal libtorch's bitwise") {
  for (const std::string approximate : {"none", "tanh"}) {
    torch::manual_seed(4);
    Layer layer(approximate);
    for (auto* const proceed : {&autograd::run_gelu_with_bias_gradient, &autograd::run_gelu}) {
      const auto result = layer.run(), operand = result.detach().requires_grad_();
      const auto ours = layer.gelu_of(result, proceed), theirs = torch::gelu(operand, approximate);
      const bool sums_columns = proceed == &autograd::run_gelu_with_bias_gradient;
      CHECK(ours.grad_fn()->name() == (sums_columns ? "GeluAndColumnsBackward" : "GeluBackward"));
      CHECK(torch::equal(ours, theirs));
      const auto gradient = gradient_like(ours);
      Tensor of_operand;
      result.register_hook([&](const Tensor& made) {
        of_operand = made.clone();
        return Tensor();
      });
      ours.backward(gradient);
      theirs.backward(gradient);
      CHECK(torch::equal(of_operand, operand.grad()));
    }
  }
  const auto plain = torch::randn({3, 6}).requires_grad_();  // no layer behind it
  CHECK(Layer().gelu_of(plain).grad_fn()->name() == "GeluBackward");
  const at::NoGradGuard no_grad;
  CHECK_FALSE(Layer().gelu_of(plain).requires_grad());
}

TEST_CASE("gelu_function: sums columns only behind a biased linear") {
  nets::Parameters net{{{6, 4}, {6}}, torch::kFloat};  // weight and bias
  const auto x = torch::randn({5, 4});
  using Function = std::function<std::vector<Tensor>(const Tensor&)>;
  const auto concerns = [&](const Function& function) {
    const auto graph = passes::fold_linear(
        trace::capture(net, {trace::input_spec(x)}, [&](const std::vector<Tensor>& in) { return function(in[0]); }));
    return autograd::reads_linear_alone(graph, graph.uses(), op_named(graph, "aten::gelu"));
  };
  const auto layer = [&](const Tensor& in) { return F::linear(in, net.p[0], net.p[1]); };
  CHECK(concerns([&](const Tensor& in) { return std::vector{torch::gelu(layer(in))}; }));
  CHECK_FALSE(concerns([&](const Tensor& in) { return std::vector{torch::gelu(F::linear(in, net.p[0]))}; }));
  CHECK_FALSE(concerns([&](const Tensor& in) { return std::vector{torch::gelu(layer(in).tanh())}; }));
  CHECK_FALSE(concerns([&](const Tensor& in) {
    const auto y = layer(in);
    return std::vector{torch::gelu(y) + y};
  }));
  CHECK_FALSE(concerns([&](const Tensor& in) {
    const auto y = layer(in);
    return std::vector{torch::gelu(y), y};
  }));
}

}  // namespace gelu_function_test
