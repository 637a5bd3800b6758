#include <cstddef>
#include <cstdint>
#include <vector>

#include <torch/torch.h>

#include <catch_shim.hpp>

#include "cuda_on_cpu/cuda_on_cpu.hpp"
#include "torch/fused/pointwise/code.hpp"
#include "unit/torch/fused/pointwise_programs.hpp"

namespace cuda_on_cpu {
extern Source pointwise_sources[];  // print_pointwise.cpp
}

// The CUDA C of point-wise expressions, run on the CPU, against libtorch's operators.
namespace pointwise_kernels_test {

using namespace autopar;
using test::InputForm;
using torch::Tensor;

const std::vector<std::int64_t> kSizes{3, 4, 3, 8};

struct Layout {
  at::MemoryFormat results;
  std::vector<InputForm> inputs;  ///< in turn
  bool in_packs;
};

const std::vector<Layout> kLayouts{
    {at::MemoryFormat::Contiguous, {InputForm::kFull}, true},
    {at::MemoryFormat::Contiguous, {InputForm::kFull, InputForm::kColumn, InputForm::kRow, InputForm::kNumber}, true},
    {at::MemoryFormat::Contiguous, {InputForm::kFull, InputForm::kTransposed, InputForm::kEverySecond}, false},
    {at::MemoryFormat::ChannelsLast, {InputForm::kChannelsLast, InputForm::kChannels}, false}};

std::vector<Tensor> inputs_for(const fused::pointwise::Expression& expression, const Layout& layout) {
  std::vector<Tensor> made;
  for (std::size_t i = 0; i < expression.inputs.size(); ++i)
    made.push_back(test::input_of(layout.inputs[i % layout.inputs.size()], kSizes[0], expression.inputs[i]));
  return made;
}

/// Largest relative error of numbers of the type that went through a dozen operators.
double tolerance_of(c10::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return 1e-11;
    case at::kBFloat16:
      return 0x1p-7;
    case at::kHalf:
      return 0x1p-10;
    default:
      return 2e-5;
  }
}

TEST_CASE("pointwise kernels: equal libtorch for any layout", "[pointwise]") {
  torch::manual_seed(21);
  const auto expressions = test::expressions_of_kernels();
  int in_packs = 0;
  for (std::size_t i = 0; i < expressions.size(); ++i) {
    const auto& expression = expressions[i];
    const auto pack = fused::pointwise::pack_of(expression);
    for (std::size_t l = 0; l < kLayouts.size(); ++l) {
      const auto inputs = inputs_for(expression, kLayouts[l]);
      auto tensors = inputs;
      for (const auto& result : expression.results)
        tensors.push_back(torch::full(kSizes, -99, result.type).contiguous(kLayouts[l].results));
      fused::pointwise::Cover made;
      REQUIRE(fused::pointwise::cover(tensors, kSizes, pack, made));
      in_packs += made.in_packs;
      INFO("expression " << i << ", layout " << l << (made.in_packs ? ", in packs" : ""));
      if (kLayouts[l].in_packs) CHECK(made.in_packs);
      cuda_on_cpu::CudaOnCpu gpu(cuda_on_cpu::pointwise_sources[i], {});
      constexpr unsigned kThreads = 256;
      gpu.launch(made.in_packs ? "pointwise_packs" : "pointwise_elements",
                 {(made.places.packs + kThreads - 1) / kThreads, 1, kThreads, 1}, made.addresses, made.places);
      const auto want = evaluate(expression, inputs);
      for (std::size_t k = 0; k < want.size(); ++k) {
        const auto tolerance = tolerance_of(expression.results[k].type);
        const auto got = tensors[inputs.size() + k].to(at::kDouble), exact = want[k].to(at::kDouble).expand(kSizes);
        INFO("result " << k << ", off by at most " << (got - exact).abs().nan_to_num().max().item<double>());
        CHECK(at::allclose(got, exact, tolerance, tolerance, /*equal_nan=*/true));
      }
    }
  }
  CHECK(in_packs > 0);
}

}  // namespace pointwise_kernels_test
