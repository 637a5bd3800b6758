#include "torch/autograd/split_backward.hpp"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>

#include "capture/trace/capture.hpp"
#include "torch/interpret/op_interpreter.hpp"
#include "torch/passes/linear_fold.hpp"

// Backwards in two parts, each against libtorch's whole one.
namespace split_backward_test {

using namespace autopar;
using torch::Tensor;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

struct Case {
  std::vector<std::vector<std::int64_t>> parameters;
  Tensor input;
  std::function<Tensor(const std::vector<Tensor>& p, const Tensor& x)> function;
  std::size_t deferred_weight;  ///< parameters that the input backward leaves without a gradient
};

struct Gradients {
  Tensor result, of_input;
  std::vector<Tensor> of_parameters, after_input;
};

/// @param splits  run the backward in two parts
Gradients run(const Case& example, bool splits) {
  torch::manual_seed(3);
  nets::Parameters net(example.parameters);
  const std::vector<trace::InputSpec> specs{trace::input_spec(example.input)};
  const auto graph = passes::fold_linear(trace::capture(
      net, specs, [&](const std::vector<Tensor>& in) { return std::vector<Tensor>{example.function(net.p, in[0])}; }));
  const auto plan = algebra::analyze_batch(graph, {});
  interpret::OpInterpreter runner(graph, plan, replay::all_ops(graph), graph.outputs, at::kCPU, splits);
  auto environment = runner.environment();
  replay::bind_state(graph, net, environment);
  auto input = example.input.detach().clone();
  if (example.input.requires_grad()) input.set_requires_grad(true);
  environment[graph.inputs[0].index()] = input;
  interpret::SliceContext slice;
  slice.samples = slice.batch = input.size(0);
  std::vector<interpret::NormSample> norms;
  const auto deferred = std::make_shared<autograd::DeferredGradients>();
  runner.run(environment, slice, norms, deferred);
  Gradients out;
  out.result = environment[graph.outputs[0].index()];
  (out.result * torch::linspace(-1, 2, out.result.numel(), torch::kDouble).cos().view(out.result.sizes()))
      .sum()
      .backward();
  out.of_input = input.grad();
  for (const auto& p : net.p) out.after_input.push_back(p.grad().defined() ? p.grad().clone() : Tensor());
  deferred->compute([&](ValueId parameter, const Tensor& gradient) {
    const auto& name = graph.value(parameter).name;
    auto& grad = net.p[static_cast<std::size_t>(std::stoi(name.substr(1)))].mutable_grad();
    if (grad.defined())
      grad.add_(gradient);
    else
      grad = gradient;
  });
  for (const auto& p : net.p) out.of_parameters.push_back(p.grad());
  return out;
}

void check_same(const Tensor& a, const Tensor& b, double tolerance) {
  REQUIRE(a.defined() == b.defined());
  if (!a.defined()) return;
  REQUIRE(a.sizes() == b.sizes());
  if (a.numel() == 0) return;
  CHECK((a - b).abs().max().item<double>() <= tolerance);
}

/// @param tolerance  0 = to the bit
void check(const Case& example, double tolerance = 0) {
  const auto whole = run(example, false), split = run(example, true);
  check_same(whole.result.detach(), split.result.detach(), tolerance);
  check_same(whole.of_input, split.of_input, tolerance);
  std::size_t deferred_weight = 0;
  for (std::size_t i = 0; i < whole.of_parameters.size(); ++i) {
    INFO("parameter " << i);
    REQUIRE(whole.of_parameters[i].defined());
    check_same(whole.of_parameters[i], split.of_parameters[i], tolerance);
    deferred_weight += split.after_input[i].defined() ? 0 : 1;
  }
  CHECK(deferred_weight == example.deferred_weight);
}

Tensor samples(std::vector<std::int64_t> sizes) { return torch::randn(sizes, torch::kDouble).requires_grad_(); }

TEST_CASE("split backward: linear defers both gradients bitwise") {
  const auto layer = [](const auto& p, const Tensor& x) { return F::linear(x, p[0], p[1]); };
  check({{{5, 4}, {5}}, samples({6, 4}), layer, 2});
  check({{{5, 4}, {5}}, samples({6, 4}).detach(), layer, 2});  // the first of a model: its input has no gradient
  check({{{5, 4}, {5}}, samples({6, 3, 4}), layer, 2});
  check({{{5, 4}}, samples({6, 2, 3, 4}), [](const auto& p, const Tensor& x) { return F::linear(x, p[0]); }, 1});
}

TEST_CASE("split backward: every dim of a layer may be 0 or 1") {
  using Sizes = std::vector<std::int64_t>;
  for (const std::int64_t in : {0, 1, 4}) {
    for (const std::int64_t out : {0, 1, 5}) {
      for (const auto& x : {Sizes{6, in}, Sizes{6, 0, in}, Sizes{6, 1, in}, Sizes{6, 2, 0, in}}) {
        INFO("Linear(" << in << ", " << out << "), " << x.size() << " dims");
        const auto linear = [](const auto& p, const Tensor& t) { return F::linear(t, p[0], p[1]); };
        check({{{out, in}, {out}}, samples(x), linear, 2});
      }
    }
  }
  for (const std::int64_t width : {0, 1}) {
    for (const Sizes& x : {Sizes{6}, Sizes{6, 0}, Sizes{6, 1}}) {
      const auto lookup = [](const auto& p, const Tensor& t) { return F::embedding(t, p[0]); };
      check({{{1, width}}, torch::zeros(x, torch::kLong), lookup, 1});
    }
  }
  const auto pixels = [](const auto& p, const Tensor& x) { return F::conv2d(x, p[0]); };
  check({{{1, 1, 1, 1}}, samples({6, 1, 1, 1}), pixels, 1});
  check({{{3, 1, 1, 1}}, samples({6, 1, 1, 3}), pixels, 1});
}

TEST_CASE("split backward: results may be written in place") {
  check({{{6, 4}, {6}, {3, 6}},
         samples({5, 2, 4}),
         [](const auto& p, const Tensor& x) {
           auto y = F::linear(x, p[0], p[1]);
           y.add_(1.0);
           y.select(1, 0).mul_(0.5);
           return F::linear(y, p[2]);
         },
         3});
}

TEST_CASE("split backward: a layer used twice gets the sum") {
  check({{{4, 4}, {4}},
         samples({6, 4}),
         [](const auto& p, const Tensor& x) { return F::linear(torch::tanh(F::linear(x, p[0], p[1])), p[0], p[1]); },
         2});
}

/// A layer of parameters in single precision that computes in bf16.
struct LayerOfCasts {
  explicit LayerOfCasts(bool convolves)
      : net(convolves ? std::vector<std::vector<std::int64_t>>{{5, 4, 3, 3}, {5}}
                      : std::vector<std::vector<std::int64_t>>{{5, 4}, {5}}) {
    for (auto& p : net.p) {
      p.set_data(p.detach().to(torch::kFloat));
      accumulators.push_back(torch::autograd::impl::grad_accumulator(p));
      const auto tell = [this](const torch::autograd::variable_list& outputs, const torch::autograd::variable_list&) {
        ++told;
        return outputs;
      };
      accumulators.back()->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(tell));
    }
    const auto layer = [&](const std::vector<Tensor>& in) {
      const auto cast = [](const Tensor& tensor) { return tensor.to(torch::kBFloat16); };
      const auto x = cast(in[0]), weight = cast(net.p[0]), bias = cast(net.p[1]);
      const auto y = convolves ? torch::conv2d(x, weight, bias) : F::linear(x, weight, bias);
      return std::vector<Tensor>{y.to(torch::kFloat)};
    };
    const std::vector<trace::InputSpec> specs{trace::input_spec(input(convolves))};
    graph = passes::fold_linear(trace::capture(net, specs, layer));
  }

  [[nodiscard]] static Tensor input(bool convolves) {
    return convolves ? torch::randn({6, 4, 5, 7}).contiguous(at::MemoryFormat::ChannelsLast) : torch::randn({6, 4});
  }

  /// Adds to the parameters' gradients. @param defers  in two parts
  void backward_of(const Tensor& x, bool defers) {
    const auto plan = algebra::analyze_batch(graph, {});
    interpret::OpInterpreter runner(graph, plan, replay::all_ops(graph), graph.outputs, at::kCPU, defers);
    auto environment = runner.environment();
    replay::bind_state(graph, net, environment);
    environment[graph.inputs[0].index()] = x;
    interpret::SliceContext slice;
    slice.samples = slice.batch = x.size(0);
    std::vector<interpret::NormSample> norms;
    const auto deferred = defers ? std::make_shared<autograd::DeferredGradients>() : nullptr;
    runner.run(environment, slice, norms, deferred);
    environment[graph.outputs[0].index()].square().sum().backward();
    if (!defers) return;
    const auto parameter_of = [&](ValueId value) {
      return net.p[static_cast<std::size_t>(std::stoi(graph.value(value).name.substr(1)))];
    };
    const auto add = [&](ValueId value, const Tensor& gradient) {
      if (gradient.defined())
        parameter_of(value).mutable_grad() = gradient;
      else
        ++added;
    };
    deferred->compute(add, {}, [&](ValueId value) { return parameter_of(value).grad(); });
  }
  [[nodiscard]] std::vector<Tensor> take_gradients() const {
    std::vector<Tensor> taken;
    for (const auto& p : net.p) taken.push_back(std::exchange(p.mutable_grad(), Tensor()));
    return taken;
  }

  nets::Parameters net;
  OpGraph graph;
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators;
  int told = 0, added = 0;
};

TEST_CASE("split backward: gradients through casts add up, hooks run") {
  torch::manual_seed(4);
  for (const bool convolves : {false, true}) {
    const auto x = LayerOfCasts::input(convolves), y = LayerOfCasts::input(convolves);
    for (const bool defers : {false, true}) {
      INFO((convolves ? "a convolution" : "linear") << (defers ? ", deferred" : ""));
      LayerOfCasts layer(convolves);
      layer.backward_of(x, defers);
      const auto of_x = layer.take_gradients();
      layer.backward_of(y, defers);
      const auto of_y = layer.take_gradients();
      layer.told = layer.added = 0;
      layer.backward_of(x, defers);
      const auto memory = layer.net.p[0].grad();
      CHECK(memory.strides() == layer.net.p[0].strides());
      layer.backward_of(y, defers);
      CHECK(layer.told == (defers ? 0 : 4));
      CHECK(layer.added == (defers ? 2 : 0));
      CHECK(layer.net.p[0].grad().is_same(memory));
      for (std::size_t i = 0; i < 2; ++i) CHECK(torch::equal(layer.net.p[i].grad(), of_x[i] + of_y[i]));
    }
  }
}

TEST_CASE("split backward: convolutions of every kind defer both") {
  using torch::conv1d, torch::conv2d, torch::conv3d;
  check({{{4, 3, 3}, {4}},
         samples({5, 3, 9}),
         [](const auto& p, const Tensor& x) { return conv1d(x, p[0], p[1], 2, 1); },
         2});
  check({{{4, 1, 3, 2}, {4}},
         samples({5, 2, 7, 6}),
         [](const auto& p, const Tensor& x) {
           return conv2d(x, p[0], p[1], 1, {1, 0}, {2, 1}, 2);
         },
         2});
  check({{{4, 2, 3, 3}}, samples({5, 2, 7, 6}), [](const auto& p, const Tensor& x) { return conv2d(x, p[0]); }, 1});
  check({{{3, 2, 2, 2, 2}, {3}},
         samples({3, 2, 4, 4, 4}),
         [](const auto& p, const Tensor& x) { return conv3d(x, p[0], p[1]); },
         2});
  check({{{2, 3, 3}, {3}},
         samples({4, 2, 5}),
         [](const auto& p, const Tensor& x) { return torch::conv_transpose1d(x, p[0], p[1], 2); },
         2});
  check({{{2, 3, 2, 2}, {3}},
         samples({4, 2, 3, 3}),
         [](const auto& p, const Tensor& x) { return torch::conv_transpose2d(x, p[0], p[1], 2, 1, 1); },
         2});
}

TEST_CASE("split backward: embeddings defer their gradient") {
  const auto ids = torch::randint(7, {6, 5}, torch::kLong);
  for (const std::int64_t padding : {-1, 2}) {
    check({{{7, 3}, {2, 3}},
           ids,
           [padding](const auto& p, const Tensor& x) { return F::linear(torch::embedding(p[0], x, padding), p[1]); },
           2});
  }
}

/// The gradient of a table in single precision whose cast to bf16 is read, from slices of a batch.
Tensor gradient_of_table(const Tensor& ids, const Tensor& gradient, std::int64_t of_slice, std::int64_t padding,
                         bool by_frequency) {
  nets::Parameters net({{7, 6}});
  net.p[0].set_data(net.p[0].detach().to(torch::kFloat));
  const std::vector<trace::InputSpec> specs{trace::input_spec(ids)};
  const auto graph = trace::capture(net, specs, [&](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{torch::embedding(net.p[0].to(torch::kBFloat16), in[0], padding, by_frequency)};
  });
  const auto plan = algebra::analyze_batch(graph, {});
  interpret::OpInterpreter runner(graph, plan, replay::all_ops(graph), graph.outputs, at::kCPU);
  for (std::int64_t first = 0; first < ids.size(0); first += of_slice) {
    auto environment = runner.environment();
    replay::bind_state(graph, net, environment);
    environment[graph.inputs[0].index()] = ids.narrow(0, first, of_slice);
    interpret::SliceContext slice;
    slice.samples = of_slice;
    slice.batch = ids.size(0);
    slice.first_sample = first;
    std::vector<interpret::NormSample> norms;
    runner.run(environment, slice, norms);
    environment[graph.outputs[0].index()].backward(gradient.narrow(0, first, of_slice));
  }
  return net.p[0].grad();
}

TEST_CASE("split backward: a cast embedding's gradient sums in fp32") {
  torch::manual_seed(5);
  const auto ids = torch::randint(5, {64, 20}, torch::kLong);
  const auto gradient = torch::randn({64, 20, 6}).to(torch::kBFloat16);
  for (const std::int64_t padding : {-1, 2}) {
    for (const bool by_frequency : {false, true}) {
      const auto exact = at::embedding_dense_backward(gradient.to(torch::kDouble), ids, 7, padding, by_frequency);
      for (const std::int64_t of_slice : {64, 16}) {
        if (by_frequency && of_slice < 64) continue;  // frequencies of a slice are others
        INFO("padding " << padding << ", by frequency " << by_frequency << ", slices of " << of_slice);
        const auto made = gradient_of_table(ids, gradient, of_slice, padding, by_frequency);
        CHECK(made.scalar_type() == torch::kFloat);
        CHECK((made.to(torch::kDouble) - exact).abs().max().item<double>() <= 1e-6 * exact.abs().max().item<double>());
      }
    }
  }
}

TEST_CASE("split backward: not for others, nor for computed weights") {
  check(
      {{{5, 4}, {5}}, samples({6, 4}), [](const auto& p, const Tensor& x) { return F::linear(x, p[0] * 2, p[1]); }, 0});
  check({{{6, 4}}, samples({6, 4}), [](const auto& p, const Tensor& x) { return x * p[0].sum(0); }, 0});
  check({{{4}, {4}, {3, 4}},
         samples({6, 4}),
         [](const auto& p, const Tensor& x) { return F::linear(torch::layer_norm(x, {4}, p[0], p[1]), p[2]); },
         1});
}

TEST_CASE("split backward: deferred and direct gradients add up") {
  check({{{4, 4}}, samples({6, 4}), [](const auto& p, const Tensor& x) { return F::linear(x, p[0]) + p[0].sum(0); }, 0},
        1e-13);
}

TEST_CASE("split backward: not with a frozen weight") {
  torch::manual_seed(3);
  nets::Parameters net({{5, 4}, {5}});
  net.p[0].set_requires_grad(false);
  const auto x = samples({6, 4});
  const auto graph =
      passes::fold_linear(trace::capture(net, {trace::input_spec(x)}, [&](const std::vector<Tensor>& in) {
        return std::vector<Tensor>{F::linear(in[0], net.p[0], net.p[1])};
      }));
  const auto plan = algebra::analyze_batch(graph, {});
  interpret::OpInterpreter runner(graph, plan, replay::all_ops(graph), graph.outputs, at::kCPU, true);
  auto environment = runner.environment();
  replay::bind_state(graph, net, environment);
  environment[graph.inputs[0].index()] = x;
  interpret::SliceContext slice;
  slice.samples = slice.batch = 6;
  std::vector<interpret::NormSample> norms;
  const auto deferred = std::make_shared<autograd::DeferredGradients>();
  runner.run(environment, slice, norms, deferred);
  environment[graph.outputs[0].index()].sum().backward();
  deferred->compute([](ValueId, const Tensor&) { FAIL("nothing may be deferred"); });
  CHECK(net.p[1].grad().defined());
  CHECK_FALSE(net.p[0].grad().defined());
}

}  // namespace split_backward_test
