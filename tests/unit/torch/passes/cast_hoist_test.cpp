#include "torch/passes/cast_hoist.hpp"

#include <torch/utils.h>

#include <catch_shim.hpp>
#include <nets.hpp>

#include "unit/torch/capture/models.hpp"

#include "capture/algebra/batch_algebra.hpp"
#include "capture/ir/casts.hpp"
#include "capture/replay/replay.hpp"
#include "torch/cost/profile.hpp"
#include "torch/passes/linear_fold.hpp"

namespace autopar::test {
namespace {

class BFloat16Autocast {
 public:
  BFloat16Autocast() {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  ~BFloat16Autocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
};

OpGraph captured_in_bf16(TestModel& model, c10::DeviceType device = c10::DeviceType::CPU) {
  trace::CaptureOptions options;
  options.autocast = autopar::trace::Autocast{at::kBFloat16, device};
  return trace::capture(
      model, specs(model.arguments(5)), [&](const Tensors& in) { return model.run(in); }, options);
}

std::vector<at::Tensor> gradients_of(TestModel& model) {
  std::vector<at::Tensor> out;
  for (auto& parameter : model.parameters()) {
    out.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
    parameter.mutable_grad().reset();
  }
  return out;
}

Tensors replayed(TestModel& model, const OpGraph& graph, const Tensors& in) {
  replay::Replayer replayer(graph, replay::all_ops(graph), graph.outputs, at::kCPU);
  auto environment = replayer.environment();
  replay::bind_state(graph, model, environment);
  for (std::size_t i = 0; i < in.size(); ++i) environment[graph.inputs[i].index()] = in[i];
  replayer.run(environment, {in[0].size(0), in[0].size(0)});
  Tensors results;
  for (const auto output : graph.outputs) results.push_back(environment[output.index()]);
  return results;
}

std::size_t casts_of_views(const OpGraph& graph) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const auto id = OpId::of(i);
    if (!graph.is(id, "aten::to") || ir::casts_parameter(graph, id)) continue;
    const auto storage = graph.value(graph.input(id, 0)).storage;
    for (const auto& info : graph.values) count += info.kind == ValueKind::kParameter && info.storage == storage;
  }
  return count;
}

std::size_t casts_of_parameters(const OpGraph& graph) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) count += ir::casts_parameter(graph, OpId::of(i));
  return count;
}

void require_autocast_bits(TestModel& model) {
  const auto in = model.arguments(6);
  Tensors eager;
  {
    const BFloat16Autocast autocast;
    eager = model.run(in);
  }
  eager[0].to(torch::kFloat).sum().backward();
  const auto eager_gradients = gradients_of(model);
  const auto graph = captured_in_bf16(model);
  const auto hoisted = passes::hoist_parameter_casts(graph);
  CHECK(casts_of_views(hoisted) == 0);
  CHECK(casts_of_parameters(hoisted) == casts_of_parameters(graph) + casts_of_views(graph));
  for (const auto* one : {&graph, &hoisted}) {
    const auto results = replayed(model, *one, in);
    REQUIRE(results[0].scalar_type() == torch::kFloat);
    CHECK(torch::equal(results[0], eager[0].to(torch::kFloat)));
    results[0].sum().backward();
    const auto gradients = gradients_of(model);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      INFO("parameter " << i);
      REQUIRE(gradients[i].defined() == eager_gradients[i].defined());
      if (gradients[i].defined()) CHECK(torch::equal(gradients[i], eager_gradients[i]));
    }
  }
}

struct Slices : TestModel {
  at::Tensor w;
  Slices() { w = register_parameter("w", torch::randn({12, 8})); }
  Tensors run(const Tensors& in) override {
    const auto x = in[0];
    const auto a = x.matmul(w.slice(0, 0, 4).t()), b = x.matmul(w.slice(0, 4, 12).t());
    return {torch::nn::functional::mse_loss(a, b.slice(1, 0, 4)) +
            x.slice(1, 0, 4).matmul(w.slice(1, 0, 4).t()).pow(2).sum()};
  }
  Tensors arguments(std::int64_t n) override { return {torch::randn({n, 8})}; }
};

}  // namespace

TEST_CASE("hoist_parameter_casts: results equal autocast bitwise", "[rewrite]") {
  torch::manual_seed(2);
  SECTION("matrices") {
    Mlp model;
    require_autocast_bits(model);
  }
  SECTION("convolutions and batch norms") {
    ResNet model;
    require_autocast_bits(model);
  }
}

TEST_CASE("hoist_parameter_casts: casts of transposed weights move", "[rewrite]") {
  torch::manual_seed(2);
  Mlp model;
  const auto graph = captured_in_bf16(model);
  CHECK(casts_of_views(graph) == 3);
  const auto hoisted = passes::hoist_parameter_casts(graph), folded = passes::fold_linear(hoisted);
  CHECK(casts_of_parameters(hoisted) == 5);  // three weights, two biases
  std::size_t linears = 0;
  for (std::size_t i = 0; i < folded.ops.size(); ++i) linears += folded.is(OpId::of(i), "aten::linear");
  CHECK(linears == 3);
}

TEST_CASE("hoist_parameter_casts: a copy of a slice stays", "[rewrite]") {
  Slices model;
  const auto in = model.arguments(6);
  const auto graph = captured_in_bf16(model), hoisted = passes::hoist_parameter_casts(graph);
  const auto before = replayed(model, graph, in)[0], after = replayed(model, hoisted, in)[0];
  CHECK(torch::equal(before, after));
}

TEST_CASE("hoist_parameter_casts: casts run and are counted once", "[rewrite]") {
  torch::manual_seed(2);
  Mlp model;
  const auto hoisted = passes::hoist_parameter_casts(captured_in_bf16(model));
  const auto unfolded = algebra::analyze_batch(hoisted);
  for (std::size_t i = 0; i < hoisted.ops.size(); ++i)
    CHECK(unfolded.ops[i].once == ir::casts_parameter(hoisted, OpId::of(i)));
  const auto graph = passes::fold_linear(hoisted);
  const auto plan = algebra::analyze_batch(graph);
  std::int64_t bytes = 0, elements = 0;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) CHECK(plan.ops[i].once == ir::casts_parameter(graph, OpId::of(i)));
  const auto profile = cost::profile_graph(graph, plan);
  for (const auto node : profile.model.graph.nodes()) {
    const auto& atom = profile.model.graph[node];
    CHECK(atom.resident == Bytes(0));  // all are read as copies alone
    CHECK(atom.saved.fixed < 1000);    // no weight among the activations
  }
  for (const auto& parameter : model.parameters()) elements += parameter.numel();
  for (const auto& parameter : profile.model.parameters) bytes += parameter.copy.value();
  CHECK(bytes == 2 * elements);
}

TEST_CASE("capture: autocast lists are those of the target device", "[rewrite]") {
  torch::manual_seed(2);
  const auto softmax = model_of([](at::Tensor y, at::Tensor) { return torch::softmax(y, 1).sum(); });
  const auto type_of_softmax = [&](c10::DeviceType device) {
    const auto graph = captured_in_bf16(*softmax, device);
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
      if (graph.is(OpId::of(i), "aten::softmax") || graph.is(OpId::of(i), "aten::_softmax")) {
        return graph.value(graph.output(OpId::of(i))).dtype;
      }
    }
    return c10::ScalarType::Undefined;
  };
  CHECK(type_of_softmax(c10::DeviceType::CPU) == c10::ScalarType::BFloat16);
  CHECK(type_of_softmax(c10::DeviceType::CUDA) == c10::ScalarType::Float);
}

namespace {

struct Sequence : TestModel {
  torch::nn::Linear up{16, 24}, down{24, 5};
  Sequence() { nets::register_all(*this, "up", up, "down", down); }
  Tensors run(const Tensors& in) override { return {down(torch::gelu(up(in[0])))}; }
  Tensors arguments(std::int64_t n) override { return {torch::randn({n, 6, 16})}; }
};

std::size_t count_of(const OpGraph& graph, const std::string& name) {
  std::size_t n = 0;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) n += graph.is(OpId::of(i), name);
  return n;
}

}  // namespace

// libtorch's layer adds a bias in single precision to the product's 16 bits: one rounding more than the folded one, and
// a pass.
TEST_CASE("fold_linear: sequences fold under autocast, as accurate", "[rewrite]") {
  torch::manual_seed(1);
  Sequence model;
  const auto in = model.arguments(64);
  const auto graph = captured_in_bf16(model);
  const auto folded = passes::fold_linear(passes::hoist_parameter_casts(graph), c10::DeviceType::CUDA);
  CHECK(count_of(graph, "aten::add_") == 2);
  CHECK(count_of(folded, "aten::linear") == 2);
  CHECK(count_of(folded, "aten::add_") == 0);
  CHECK(casts_of_parameters(folded) == 4);  // two weights and their biases

  const auto results_of = [&](const OpGraph& one) {
    auto tensors = replayed(model, one, in);
    tensors[0].square().sum().backward();
    for (auto& gradient : gradients_of(model)) tensors.push_back(gradient);
    return tensors;
  };
  const auto plain = results_of(graph), ours = results_of(folded);
  model.to(torch::kDouble);
  auto exact = model.run({in[0].to(torch::kDouble)});
  exact[0].square().sum().backward();
  for (auto& gradient : gradients_of(model)) exact.push_back(gradient);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const auto error = [&](const Tensors& from) {
      return (from[i].to(torch::kDouble) - exact[i]).norm().item<double>();
    };
    INFO(i << ": " << error(ours) << " after " << error(plain));
    CHECK(ours[i].scalar_type() == plain[i].scalar_type());
    CHECK(error(ours) <= 1.5 * error(plain));
  }
}

TEST_CASE("fold_linear: on CPUs an fp32 bias is added as in autocast", "[rewrite]") {
  Sequence model;
  const auto folded = passes::fold_linear(passes::hoist_parameter_casts(captured_in_bf16(model)));
  CHECK(count_of(folded, "aten::add_") == 2);
  CHECK(casts_of_parameters(folded) == 2);
}

TEST_CASE("fold_linear: an fp32 bias stays where the sum is fp32", "[rewrite]") {
  struct OutOfPlace : Sequence {
    Tensors run(const Tensors& in) override { return {in[0].matmul(up->weight.t()) + up->bias}; }
  } model;
  const auto folded =
      passes::fold_linear(passes::hoist_parameter_casts(captured_in_bf16(model)), c10::DeviceType::CUDA);
  CHECK(count_of(folded, "aten::add") == 1);
}

}  // namespace autopar::test
