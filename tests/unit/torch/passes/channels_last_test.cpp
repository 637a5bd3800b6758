#include "torch/passes/channels_last.hpp"

#include <functional>
#include <memory>
#include <optional>

#include <torch/nn/functional.h>

#include <catch_shim.hpp>

#include "unit/torch/capture/models.hpp"

#include "capture/ir/casts.hpp"
#include "capture/ir/tensor_form.hpp"
#include "capture/replay/replay.hpp"
#include "torch/passes/cast_hoist.hpp"

namespace autopar::test {
namespace {

namespace F = torch::nn::functional;
using torch::nn::Conv2dOptions;

constexpr passes::MatrixUnits kHalf{true, false}, kBoth{true, true};

/// Two convolutions and what a test puts behind them.
struct Images : TestModel {
  torch::nn::Conv2d a{nullptr}, b{nullptr};
  std::function<at::Tensor(at::Tensor)> rest;
  Images(std::int64_t width, std::function<at::Tensor(at::Tensor)> tail) : rest(std::move(tail)) {
    a = register_module("a", torch::nn::Conv2d(Conv2dOptions(3, width, 3).padding(1)));
    b = register_module("b", torch::nn::Conv2d(Conv2dOptions(width, width, 3).padding(1)));
  }
  Tensors run(const Tensors& in) override { return {rest(b(torch::relu(a(in[0]))))}; }
  Tensors arguments(std::int64_t n) override { return {torch::randn({n, 3, 6, 6})}; }
};

at::Tensor as_it_is(at::Tensor x) { return x; }
at::Tensor pooled(at::Tensor x) { return F::adaptive_avg_pool2d(x, F::AdaptiveAvgPool2dFuncOptions(1)).flatten(1); }

trace::FlatForward forward_of(TestModel& model) {
  return [&model](const Tensors& in) { return model.run(in); };
}

OpGraph captured(TestModel& model, const trace::CaptureOptions& options = {}) {
  return trace::capture(model, specs(model.arguments(4)), forward_of(model), options);
}

std::optional<passes::ChannelsLastProgram> converted(TestModel& model, const trace::CaptureOptions& options = {}) {
  return passes::capture_channels_last(captured(model, options), model, specs(model.arguments(4)), forward_of(model),
                                       options);
}

trace::CaptureOptions in_bfloat16() {
  trace::CaptureOptions options;
  options.autocast = autopar::trace::Autocast{at::kBFloat16, c10::DeviceType::CUDA};
  return options;
}

/// A replay of the converted program gives what the forward gives on the arguments as they come.
void require_equal(TestModel& model) {
  const auto program = converted(model);
  REQUIRE(program);
  const auto& graph = program->graph;
  REQUIRE(graph.ops.size() == captured(model).ops.size());
  std::vector<ValueId> all;
  for (std::size_t v = 0; v < graph.values.size(); ++v) all.push_back(ValueId::of(v));
  replay::Replayer replayer(graph, replay::all_ops(graph), all, at::kCPU);
  for (const std::int64_t batch : {5, 1}) {
    const auto arguments = model.arguments(batch);
    auto environment = replayer.environment();
    replay::bind_state(graph, model, environment);
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const bool image = arguments[i].dim() == 4;
      environment[graph.inputs[i].index()] =
          image ? arguments[i].contiguous(at::MemoryFormat::ChannelsLast) : arguments[i];
    }
    const auto eager = model.run(arguments);
    replayer.run(environment, {batch, batch});
    for (std::size_t i = 0; i < eager.size(); ++i) {
      REQUIRE(torch::allclose(environment[graph.outputs[i].index()], eager[i], 1e-4, 1e-5));
    }
    for (std::size_t v = 0; v < graph.values.size(); ++v) {
      const auto& value = graph.values[v];
      if (value.kind != ValueKind::kComputed || value.sizes.size() != 4) continue;
      INFO(graph.describe(value.definer));
      REQUIRE(environment[v].is_contiguous(at::MemoryFormat::ChannelsLast));
    }
  }
}

}  // namespace

TEST_CASE("channels_last: equal results, and every image is converted", "[rewrite]") {
  torch::manual_seed(1);
  ResNet net;
  net.eval();
  require_equal(net);
  Images images(8, as_it_is), heads(8, pooled);
  require_equal(images);
  require_equal(heads);
}

TEST_CASE("channels_last: results keep the caller's strides", "[rewrite]") {
  Images model(8, as_it_is);
  const auto plain = captured(model);
  const auto program = converted(model);
  REQUIRE(program);
  CHECK((program->graph.value(program->graph.outputs[0]).strides == plain.value(plain.outputs[0]).strides));
  CHECK(ir::is_channels_last(program->graph.value(program->graph.inputs[0])));
  CHECK(program->inputs[0].format == at::MemoryFormat::ChannelsLast);
}

TEST_CASE("channels_last: forwards that depend on strides are unchanged", "[rewrite]") {
  Images viewed(8, [](at::Tensor x) { return x.view({x.size(0), -1}); });
  CHECK_FALSE(converted(viewed));
  Images strided(8, [](at::Tensor x) { return x.as_strided({x.size(0), 4}, {288, 1}); });
  CHECK_FALSE(converted(strided));
  Images written(8, [](at::Tensor x) {
    auto rows = x.permute({0, 2, 3, 1}).contiguous();  // a copy, and of channels-last data none
    rows.mul_(2);
    return x + rows.permute({0, 3, 1, 2});
  });
  CHECK_FALSE(converted(written));
}

TEST_CASE("gains_from_channels_last: only where matrix units convolve", "[rewrite]") {
  Images wide(64, pooled), narrow(6, pooled);
  Mlp mlp;
  CHECK(passes::gains_from_channels_last(captured(wide, in_bfloat16()), kHalf));
  CHECK_FALSE(passes::gains_from_channels_last(captured(wide), kHalf));
  CHECK(passes::gains_from_channels_last(captured(wide), kBoth));
  CHECK_FALSE(passes::gains_from_channels_last(captured(wide, in_bfloat16()), {}));
  CHECK_FALSE(passes::gains_from_channels_last(captured(narrow, in_bfloat16()), kBoth));
  CHECK_FALSE(passes::gains_from_channels_last(captured(mlp), kBoth));
}

TEST_CASE("lay_out_weight_copies: layouts follow the readers", "[rewrite]") {
  Images model(64, pooled);
  const auto copies = [](const OpGraph& graph) {
    std::vector<bool> last;
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
      const auto op = OpId::of(i);
      if (ir::casts_parameter(graph, op) && graph.value(graph.output(op)).sizes.size() == 4) {
        last.push_back(ir::is_channels_last(graph.value(graph.output(op))));
      }
    }
    return last;
  };
  const auto program = converted(model, in_bfloat16());
  REQUIRE(program);
  CHECK(copies(program->graph) == std::vector{false, false});
  CHECK(copies(passes::lay_out_weight_copies(program->graph)) == std::vector{true, true});
  const auto plain = captured(model, in_bfloat16());
  CHECK(copies(passes::lay_out_weight_copies(plain)) == std::vector{false, false});
}

}  // namespace autopar::test
