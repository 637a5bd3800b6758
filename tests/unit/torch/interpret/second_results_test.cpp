#include "torch/interpret/second_results.hpp"

#include <functional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <catch_shim.hpp>

#include "torch/fused/fused_ops.hpp"
#include "torch/fused/launch.hpp"

#include "unit/torch/capture/models.hpp"

namespace autopar::test {
namespace second_results {

using torch::Tensor;

/// What a norm's result is read by.
struct Images : TestModel {
  std::function<Tensors(const Tensor&)> readers;
  torch::nn::BatchNorm2d norm{4};
  explicit Images(std::function<Tensors(const Tensor&)> of) : readers(std::move(of)) { register_module("norm", norm); }
  Tensors run(const Tensors& in) override { return readers(torch::relu(norm(in[0]))); }
  Tensors arguments(std::int64_t n) override { return {torch::randn({n, 4, 3, 3})}; }
};

OpGraph folded(Images net) { return fused::batch_norm_relu().pattern(capture_model(net)); }

OpId op_named(const OpGraph& graph, std::string_view name) {
  for (std::size_t i = 0; i < graph.ops.size(); ++i)
    if (graph.is(OpId::of(i), name)) return OpId::of(i);
  return OpId::none();
}

/// A run of the operators that results pass, which compute nothing.
struct Passing {
  const OpGraph& graph;
  interpret::SecondResults seconds{graph, replay::all_ops(graph), graph.outputs};
  replay::Environment environment{graph.values.size()};
  Tensor first = torch::zeros({}), second = torch::ones({});

  [[nodiscard]] OpId maker() const { return op_named(graph, fused::kBatchNormRelu); }
  void make() {
    torch::jit::Stack stack{first, second};
    replay::ReplayCall call{maker(), graph.op(maker()), {4, 4}, stack, environment};
    seconds.after(call);
    CHECK(stack.size() == 1);
    CHECK(stack[0].toTensor().is_same(first));
  }
  /// Whether the operator gets the second result.
  bool gets_second(std::string_view name) {
    const auto op = op_named(graph, name);
    torch::jit::Stack stack(graph.op(op).args.size());
    for (const auto& slot : graph.op(op).inputs) stack[static_cast<std::size_t>(slot.position)] = first;
    replay::ReplayCall call{op, graph.op(op), {4, 4}, stack, environment};
    seconds.before(call);
    return std::ranges::any_of(
        stack, [&](const c10::IValue& each) { return each.isTensor() && each.toTensor().is_same(second); });
  }
};

struct TwoOfOneMemory : torch::autograd::Function<TwoOfOneMemory> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    context->set_materialize_grads(false);
    const auto made = x * 2;
    return {made, fused::detail::same_memory(made)};
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& given) {
    const auto or_zero = [](const Tensor& each) { return each.defined() ? each : torch::zeros({3}); };
    return {or_zero(given[0]) + 10 * or_zero(given[1])};
  }
};

}  // namespace second_results

TEST_CASE("duplicated outputs: the last reader gets the duplicate, once", "[interpret]") {
  using namespace second_results;
  const auto graph = folded(Images([](const Tensor& y) { return Tensors{torch::tanh(y) * torch::exp(y), y.sin()}; }));
  Passing run{graph};
  CHECK(run.seconds.concerns(run.maker()));
  CHECK_FALSE(run.seconds.concerns(op_named(graph, "aten::tanh")));
  run.make();
  CHECK_FALSE(run.gets_second("aten::tanh"));
  CHECK_FALSE(run.gets_second("aten::exp"));
  CHECK(run.gets_second("aten::sin"));
  CHECK_FALSE(run.gets_second("aten::sin"));  // the next run has made none yet
  run.make();
  run.seconds.clear();
  CHECK_FALSE(run.gets_second("aten::sin"));
}

TEST_CASE("duplicated outputs: a returned value has one more reader", "[interpret]") {
  using namespace second_results;
  const auto graph = folded(Images([](const Tensor& y) { return Tensors{y, torch::tanh(y)}; }));
  Passing run{graph};
  run.make();
  CHECK(run.gets_second("aten::tanh"));
  run.seconds.exclude(run.maker());
  CHECK_FALSE(run.seconds.concerns(run.maker()));
}

TEST_CASE("duplicated outputs: an operator reading twice gets both", "[interpret]") {
  using namespace second_results;
  const auto graph = folded(Images([](const Tensor& y) { return Tensors{y * y}; }));
  Passing run{graph};
  run.make();
  CHECK(run.gets_second("aten::mul"));
}

TEST_CASE("duplicated outputs: none for one reader, no grad, or writes", "[interpret]") {
  using namespace second_results;
  using Readers = std::function<Tensors(const Tensor&)>;
  const std::vector<std::pair<std::string, Readers>> forms{
      {"one reader", [](const Tensor& y) { return Tensors{torch::tanh(y)}; }},
      {"a reader without a history",
       [](const Tensor& y) {
         const auto t = torch::tanh(y);
         const torch::NoGradGuard no_grad;
         return Tensors{t, y.sin()};
       }},
      {"written", [](const Tensor& y) {
         const auto t = torch::sign(y);
         return Tensors{t, y.mul_(2)};
       }}};
  for (const auto& [name, readers] : forms) {
    INFO(name);
    const auto graph = folded(Images(readers));
    const interpret::SecondResults seconds(graph, replay::all_ops(graph), graph.outputs);
    for (const auto op : replay::all_ops(graph)) CHECK_FALSE(seconds.concerns(op));
  }
}

TEST_CASE("duplicated outputs: two of one memory have own gradients", "[interpret]") {
  using namespace second_results;
  const auto x = torch::ones({3}).requires_grad_();
  const auto gradient = [&](double of_first, double of_second) {
    const auto made = TwoOfOneMemory::apply(x);
    CHECK(made[0].data_ptr() == made[1].data_ptr());
    Tensor sum = torch::zeros({});
    if (of_first != 0) sum = sum + (made[0] * of_first).sum();
    if (of_second != 0) sum = sum + (made[1] * of_second).sum();
    return torch::autograd::grad({sum}, {x})[0][0].item<double>();
  };
  CHECK(gradient(1, 2) == 21);
  CHECK(gradient(3, 0) == 3);
  CHECK(gradient(0, 4) == 40);
  const auto made = TwoOfOneMemory::apply(x);
  const auto squares = made[0] * made[0];
  made[1].add_(1);
  CHECK_THROWS_WITH(squares.sum().backward(), Catch::Matchers::Contains("modified by an inplace operation"));
}

}  // namespace autopar::test
