#include "torch/cost/workspace.hpp"

#include <functional>
#include <string>
#include <vector>

#include "ops/rules.hpp"
#include "torch/fused/fused_ops.hpp"

#include "unit/torch/passes/folded.hpp"

namespace autopar::test {
namespace workspace_test {

using torch::Tensor;

/// A norm of what has no gradient.
struct Net : TestModel {
  std::function<Tensor(Net&, const Tensor&)> forward;
  torch::nn::BatchNorm2d norm{4};
  Tensor factor = register_parameter("factor", torch::ones({}));
  explicit Net(std::function<Tensor(Net&, const Tensor&)> of) : forward(std::move(of)) {
    register_module("norm", norm);
  }
  Tensors run(const Tensors& in) override { return {forward(*this, in[0]).sum()}; }
  Tensors arguments(std::int64_t n) override { return {torch::randn({n, 4, 3, 5})}; }
};

/// What the norm's backward works in on a device, in sizes of its result.
double workspace(const OpGraph& graph, c10::DeviceType device) {
  AlgebraOptions options;
  options.device = device;
  const auto plan = algebra::analyze_batch(graph, options);
  const std::vector<bool> kept(static_cast<std::size_t>(graph.storage_count), false);
  const algebra::Workspaces workspaces(graph, plan, kept, {});
  for (const auto op : replay::all_ops(graph)) {
    if (!graph.is(op, fused::kBatchNormRelu)) continue;
    const auto of_result = ops::bytes_of(graph, graph.output(op));
    return workspaces.of({graph, plan.values, options, op}).backward.at(100) / of_result.at(100);
  }
  return 0;
}

}  // namespace workspace_test

TEST_CASE("workspace: fused kernels hold the gradients of two readers", "[cost]") {
  using namespace workspace_test;
  const auto more_on_cuda = [](std::function<Tensor(Net&, const Tensor&)> forward) {
    Net net(std::move(forward));
    const auto graph = fused::batch_norm_relu().pattern(capture_model(net));
    return workspace(graph, c10::DeviceType::CUDA) - workspace(graph, c10::DeviceType::CPU);
  };
  CHECK(more_on_cuda([](Net& n, const Tensor& x) { return torch::relu(n.norm(x)).tanh(); }) == 0);
  CHECK(more_on_cuda([](Net& n, const Tensor& x) {
          const auto y = torch::relu(n.norm(x));
          return y.tanh() * y.exp();
        }) == Approx(1));
  // The addend's gradient takes the place of one.
  CHECK(more_on_cuda([](Net& n, const Tensor& x) {
          const auto y = torch::relu(n.norm(x) + x * n.factor);
          return y.tanh() * y.exp();
        }) == 0);
  CHECK(more_on_cuda([](Net& n, const Tensor& x) { return torch::relu(n.norm(x) + x * n.factor).tanh(); }) ==
        Approx(-1));
}

}  // namespace autopar::test
