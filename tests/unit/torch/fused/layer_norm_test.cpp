#include "torch/fused/layer_norm.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <torch/torch.h>

#include <catch_shim.hpp>

#include "torch/fused/fused_ops.hpp"
#include "torch/fused/seeded_dropout.hpp"

namespace autopar::test {
namespace layer_norm_operator {

using std::optional;
using torch::Tensor;

constexpr std::int64_t kWidth = 6;

std::tuple<Tensor, Tensor> joined(const Tensor& input, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                                  double p, const optional<Tensor>& seed) {
  using Operator = std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, at::IntArrayRef, const optional<Tensor>&,
                                              const optional<Tensor>&, double, bool, double, const optional<Tensor>&);
  static const auto op = fused::fused_operator(fused::kAddLayerNorm).typed<Operator>();
  return op.call(input, residual, {kWidth}, weight, bias, 1e-5, false, p, seed);
}

}  // namespace layer_norm_operator

TEST_CASE("add_layer_norm: the fallback equals autograd with dropout", "[kernels]") {
  using namespace layer_norm_operator;
  torch::manual_seed(12);
  const auto drawn = [](std::vector<std::int64_t> sizes) {
    return torch::randn(sizes, torch::kDouble).requires_grad_();
  };
  const auto input = drawn({5, 40, kWidth}), residual = drawn({5, 40, kWidth}), weight = drawn({kWidth}),
             bias = drawn({kWidth}), of_sum = drawn({5, 40, kWidth}), of_norm = drawn({5, 40, kWidth});
  const auto outcome = [&](const Tensor& sum, const Tensor& norm) {
    auto all = torch::autograd::grad({sum, norm}, {input, residual, weight, bias}, {of_sum, of_norm});
    all.insert(all.end(), {sum, norm});
    return all;
  };
  for (const std::int64_t seed : {std::int64_t{5}, std::int64_t{-0x123456789ABCDEF}}) {
    const auto mask = fused::seeded_dropout(torch::ones_like(input), 0.25, {static_cast<std::uint64_t>(seed)}).detach();
    CHECK(mask.ne(0).to(torch::kDouble).mean().item<double>() == Approx(0.75).epsilon(0.06));
    CHECK(torch::allclose(mask.masked_select(mask.ne(0)), torch::full({}, 1 / 0.75, torch::kDouble), 1e-15, 0));
    const auto sum = input * mask + residual;
    const auto expected = outcome(sum, torch::layer_norm(sum, {kWidth}, weight, bias, 1e-5));
    const auto [own_sum, own_norm] = joined(input, residual, weight, bias, 0.25, torch::tensor(seed, torch::kLong));
    const auto made = outcome(own_sum, own_norm);
    for (std::size_t i = 0; i < made.size(); ++i) {
      INFO(seed << ", " << i);
      CHECK(torch::allclose(made[i], expected[i], 1e-12, 1e-12));
    }
  }
}

TEST_CASE("has_layer_norm_kernels: whole vectors that fit into a block", "[kernels]") {
  CHECK(fused::has_layer_norm_kernels(torch::kBFloat16, 2048));
  CHECK(fused::has_layer_norm_kernels(torch::kHalf, 8));
  CHECK(fused::has_layer_norm_kernels(torch::kFloat, 4));
  CHECK(fused::has_layer_norm_kernels(torch::kBFloat16, 8192));
  CHECK_FALSE(fused::has_layer_norm_kernels(torch::kBFloat16, 8200));
  CHECK_FALSE(fused::has_layer_norm_kernels(torch::kFloat, 8192));
  CHECK_FALSE(fused::has_layer_norm_kernels(torch::kBFloat16, 12));
  CHECK_FALSE(fused::has_layer_norm_kernels(torch::kDouble, 64));
}

}  // namespace autopar::test
