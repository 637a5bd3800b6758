#include "ops/rules.hpp"

#include <cstdint>

#include "capture/algebra/batch_algebra.hpp"
#include "torch/fused/fused_ops.hpp"

#include "unit/torch/passes/folded.hpp"

namespace autopar::test {
namespace work_test {

using torch::Tensor;

constexpr std::int64_t kRows = 4;  ///< of a sample

/// The norm of a sum, of which one addend is dropped.
struct DroppingNorm : TestModel {
  std::int64_t width;
  torch::nn::LayerNorm norm;
  explicit DroppingNorm(std::int64_t of) : width(of), norm(torch::nn::LayerNormOptions({of})) {
    register_module("norm", norm);
  }
  Tensors run(const Tensors& in) override { return {norm(in[0] + torch::dropout(in[0].tanh(), 0.1, true)).sum()}; }
  Tensors arguments(std::int64_t n) override { return {torch::randn({n, kRows, width})}; }
};

/// Bytes that it keeps of a row beside its sum and two statistics.
double kept_of_row(std::int64_t width, c10::DeviceType device) {
  DroppingNorm net(width);
  const auto graph = fused::add_layer_norm().pattern(capture_model(net));
  AlgebraOptions options;
  options.device = device;
  const auto plan = algebra::analyze_batch(graph, options);
  for (const auto op : replay::all_ops(graph)) {
    if (!graph.is(op, fused::kAddLayerNorm)) continue;
    const auto saved = ops::saved_by({graph, plan.values, options, op});
    CHECK((saved.values == std::vector{graph.output(op)}));
    return saved.internal.per_sample / kRows - 2 * sizeof(float);
  }
  return -1;
}

}  // namespace work_test

TEST_CASE("saved bytes: fused norms redo dropout, others save masks", "[cost]") {
  using namespace work_test;
  CHECK(kept_of_row(8, c10::DeviceType::CUDA) == 0);
  CHECK(kept_of_row(6, c10::DeviceType::CUDA) == 6);  // rows are no whole packs: bytes
  CHECK(kept_of_row(8, c10::DeviceType::CPU) == 8 * sizeof(float));
}

}  // namespace autopar::test
