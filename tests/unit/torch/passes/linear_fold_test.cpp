#include "torch/passes/linear_fold.hpp"

#include <torch/utils.h>

#include <catch_shim.hpp>

#include "unit/torch/capture/models.hpp"

#include "capture/replay/replay.hpp"

namespace autopar::test {
namespace {

std::size_t count(const OpGraph& graph, const std::string& name) {
  std::size_t n = 0;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) n += graph.is(OpId::of(i), name);
  return n;
}

std::vector<at::Tensor> results_and_gradients(TestModel& model, const OpGraph& graph, const Tensors& in) {
  replay::Replayer replayer(graph, replay::all_ops(graph), graph.outputs, at::kCPU);
  auto environment = replayer.environment();
  replay::bind_state(graph, model, environment);
  for (std::size_t i = 0; i < in.size(); ++i) environment[graph.inputs[i].index()] = in[i];
  torch::manual_seed(4);
  replayer.run(environment, {in[0].size(0), in[0].size(0)});
  Tensors result;
  at::Tensor total = torch::zeros({}, torch::kDouble);
  for (auto output : graph.outputs) {
    result.push_back(environment[output.index()].detach());
    if (environment[output.index()].requires_grad()) total = total + environment[output.index()].sum();
  }
  total.backward();
  for (auto& parameter : model.parameters())
    result.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
  model.zero_grad();
  return result;
}

/// ulps: 0 for bit-equal.
void require_same(TestModel& model, std::size_t linears, double tolerance) {
  model.to(torch::kDouble);
  auto in = model.arguments(5);
  for (auto& tensor : in) {
    if (tensor.is_floating_point()) tensor = tensor.to(torch::kDouble);
  }
  const auto plain = trace::capture(model, specs(in), [&](const Tensors& arguments) { return model.run(arguments); });
  const auto folded = passes::fold_linear(plain);
  REQUIRE(count(folded, "aten::linear") == linears);
  REQUIRE(count(folded, "aten::addmm") == 0);
  const auto a = results_and_gradients(model, plain, in), b = results_and_gradients(model, folded, in);
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    INFO(i);
    REQUIRE(a[i].defined() == b[i].defined());
    if (!a[i].defined()) continue;
    if (tolerance == 0)
      REQUIRE(torch::equal(a[i], b[i]));
    else
      REQUIRE((a[i] - b[i]).abs().max().item<double>() <= tolerance * (1 + a[i].abs().max().item<double>()));
  }
}

}  // namespace

TEST_CASE("fold_linear: matrices fold bitwise", "[rewrite]") {
  torch::manual_seed(1);
  Mlp model;
  require_same(model, 3, 0);
}

TEST_CASE("fold_linear: sequences fold to the last bit", "[rewrite]") {
  torch::manual_seed(1);
  Transformer model;
  const auto layer_linears = 2 * 2;  // up and down; attention's own are of other forms or folded as well
  model.to(torch::kDouble);
  const auto graph = passes::fold_linear(capture_model(model));
  REQUIRE(count(graph, "aten::linear") >= static_cast<std::size_t>(layer_linears + 1));
  require_same(model, count(graph, "aten::linear"), 4e-16);
}

struct HandWritten : TestModel {
  at::Tensor w, b, square;
  HandWritten() {
    w = register_parameter("w", torch::randn({6, 4}));
    b = register_parameter("b", torch::randn({6}));
    square = register_parameter("square", torch::randn({6, 6}));
  }
  Tensors run(const Tensors& in) override {
    const auto x = in[0], rows = x.select(1, 0);
    const auto plus = x.matmul(w.t()) + b, swapped = b + plus.tanh().matmul(square.t()),
               bare = swapped.matmul(square.t());
    return {(bare * plus).sum(), torch::addmm(b, rows, w.t()).tanh().matmul(square.t()).sum(),
            (rows.matmul(w.t()) + b).sin()};
  }
  Tensors arguments(std::int64_t n) override { return {torch::randn({n, 3, 4})}; }
};

TEST_CASE("fold_linear: hand-written layers fold", "[rewrite]") {
  torch::manual_seed(1);
  HandWritten model;
  const auto folded = passes::fold_linear(capture_model(model));
  REQUIRE(count(folded, "aten::matmul") == 0);
  REQUIRE(count(folded, "aten::add") == 0);
  REQUIRE(count(folded, "aten::t") == 0);
  require_same(model, 6, 4e-16);
}

TEST_CASE("fold_linear: other programs are unchanged", "[rewrite]") {
  const auto unchanged = [](auto function) {
    auto model = model_of(function);
    const auto before = capture_model(*model);
    const auto after = passes::fold_linear(before);
    return count(after, "aten::linear") == 1;  // the model's own layer, and nothing else
  };
  using at::Tensor;
  const auto w = torch::randn({8, 8});
  SECTION("a transpose used twice") {
    REQUIRE(unchanged([w](Tensor y, Tensor) {
      auto t = w.t();
      return torch::addmm(torch::ones({8}), y, t).sum() + t.sum();
    }));
  }
  SECTION("scaled addmm") {
    REQUIRE(unchanged([w](Tensor y, Tensor) { return torch::addmm(torch::ones({8}), y, w.t(), 0.5, 2).sum(); }));
  }
  SECTION("a matrix as bias") {
    REQUIRE(unchanged([w](Tensor y, Tensor) { return torch::addmm(w.slice(0, 0, 1), y, w.t()).sum(); }));
  }
  SECTION("a transpose as first operand") {
    REQUIRE(unchanged([w](Tensor y, Tensor) { return torch::matmul(w.t(), y.sum(0)).sum(); }));
  }
  SECTION("a bias that is added in parts") {
    auto model = model_of([w](Tensor y, Tensor) { return torch::add(y.matmul(w.t()), torch::ones({8}), 0.5).sum(); });
    const auto folded = passes::fold_linear(capture_model(*model));
    REQUIRE(count(folded, "aten::linear") == 2);  // without the bias
    REQUIRE(count(folded, "aten::add") == 1);
  }
  SECTION("a product that an operator of two arguments reads") {
    REQUIRE(unchanged([](Tensor y, Tensor) { return (y.matmul(y.t()) / 2).sum(); }));
    REQUIRE(unchanged([w](Tensor y, Tensor) { return w.matmul(y.t()).mul(y.t()).sum(); }));
  }
  SECTION("a sum over samples, whose product is a sum again") {
    REQUIRE(unchanged([w](Tensor y, Tensor) { return y.sum(0, true).matmul(w.t()).sum(); }));
  }
  SECTION("samples as weight") {
    REQUIRE(unchanged([w](Tensor y, Tensor) { return w.matmul(y.t()).sum(); }));
    REQUIRE(unchanged([](Tensor y, Tensor) { return y.matmul(y.t()).sum(); }));
  }
  SECTION("the operand is overwritten in between") {
    REQUIRE(unchanged([w](Tensor y, Tensor) {
      auto v = w.clone();
      auto t = v.t();
      v.mul_(2.0);
      return torch::addmm(torch::ones({8}), y, t).sum();
    }));
  }
}

}  // namespace autopar::test
