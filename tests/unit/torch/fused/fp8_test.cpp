#include "torch/fused/fp8.hpp"

#include <cmath>

#include <torch/types.h>
#include <torch/utils.h>

#include <catch_shim.hpp>

namespace autopar::test {
namespace {

using fused::Fp8Scale;
using fused::Fp8Sides;

Fp8Scale scale_of(double factor) {
  return {torch::full({1}, factor, torch::kFloat), torch::full({1}, 1 / factor, torch::kFloat), torch::zeros({1})};
}

at::Tensor values_of(const at::Tensor& in_8_bits, const at::Tensor& unit) { return in_8_bits.to(torch::kFloat) * unit; }

TEST_CASE("cast_to_fp8: rows and their transpose, saturated, with the largest magnitude", "[fp8]") {
  torch::manual_seed(1);
  const auto matrix = torch::randn({21, 32}).mul(30).to(torch::kBFloat16);
  for (const auto format : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    const auto scale = scale_of(8);
    const auto made = fused::cast_to_fp8(matrix, format, scale, Fp8Sides::kBoth);
    const double largest = format == at::kFloat8_e4m3fn ? 448 : 57344;
    const auto wanted = matrix.to(torch::kFloat).mul(8).clamp(-largest, largest).to(format).to(torch::kFloat);
    CHECK(torch::equal(made.rows.to(torch::kFloat), wanted));
    REQUIRE(made.columns.sizes() == at::IntArrayRef({32, 32}));
    CHECK(torch::equal(made.columns.to(torch::kFloat).narrow(1, 0, 21), wanted.t()));
    CHECK(made.columns.to(torch::kFloat).narrow(1, 21, 11).abs().max().item<float>() == 0);
    CHECK(scale.most.item<float>() == matrix.abs().max().item<float>());
    CHECK_FALSE(fused::cast_to_fp8(matrix, format, scale, Fp8Sides::kRows).columns.defined());
    CHECK_FALSE(fused::cast_to_fp8(matrix, format, scale, Fp8Sides::kColumns).rows.defined());
  }
}

TEST_CASE("fp8_columns: the transpose that a cast gives", "[fp8]") {
  torch::manual_seed(3);
  for (const std::int64_t height : {16, 21}) {
    const auto matrix = torch::randn({height, 32}).mul(30).to(torch::kBFloat16);
    const auto made = fused::cast_to_fp8(matrix, at::kFloat8_e4m3fn, scale_of(8), Fp8Sides::kBoth);
    CHECK(torch::equal(fused::fp8_columns(made.rows).view(torch::kByte), made.columns.view(torch::kByte)));
  }
}

TEST_CASE("cast_to_fp8: numbers that are not finite saturate or stay NaN, and are told", "[fp8]") {
  auto matrix = torch::ones({2, 16}, torch::kBFloat16);
  matrix[0][3] = std::numeric_limits<float>::infinity();
  const auto scale = scale_of(1);
  const auto made = fused::cast_to_fp8(matrix, at::kFloat8_e4m3fn, scale, Fp8Sides::kRows);
  CHECK(made.rows.to(torch::kFloat)[0][3].item<float>() == 448);
  CHECK(std::isinf(scale.most.item<float>()));
  matrix[1][5] = std::numeric_limits<float>::quiet_NaN();
  const auto other = scale_of(1);
  const auto with_nan = fused::cast_to_fp8(matrix, at::kFloat8_e4m3fn, other, Fp8Sides::kRows);
  CHECK(std::isnan(with_nan.rows.to(torch::kFloat)[1][5].item<float>()));
  CHECK(std::isnan(other.most.item<float>()));
}

TEST_CASE("fp8_product: sums of the cast numbers in single precision", "[fp8]") {
  torch::manual_seed(2);
  const auto a = torch::randn({24, 32}).to(torch::kBFloat16), b = torch::randn({48, 32}).to(torch::kBFloat16);
  const auto bias = torch::randn({48}).to(torch::kBFloat16);
  const auto of_a = fused::cast_to_fp8(a, at::kFloat8_e5m2, scale_of(64), Fp8Sides::kRows);
  const auto of_b = fused::cast_to_fp8(b, at::kFloat8_e4m3fn, scale_of(16), Fp8Sides::kRows);
  const auto exact = values_of(of_a.rows, of_a.unit).mm(values_of(of_b.rows, of_b.unit).t());
  const auto made = fused::fp8_product({of_a.rows, of_a.unit}, {of_b.rows, of_b.unit}, {}, at::kFloat);
  CHECK(torch::allclose(made, exact, 1e-5, 1e-5));
  const auto with_bias = fused::fp8_product({of_a.rows, of_a.unit}, {of_b.rows, of_b.unit}, bias, at::kBFloat16);
  CHECK(with_bias.scalar_type() == at::kBFloat16);
  CHECK(torch::allclose(with_bias.to(torch::kFloat), exact + bias.to(torch::kFloat), 1e-2, 1e-2));
  const auto sum = torch::ones({24, 48});
  fused::put_fp8_product({of_a.rows, of_a.unit}, {of_b.rows, of_b.unit}, sum, fused::Destination::kAdds);
  CHECK(torch::allclose(sum, exact + 1, 1e-5, 1e-5));
}

}  // namespace
}  // namespace autopar::test
