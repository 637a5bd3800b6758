#include <cstdint>
#include <vector>

#include <torch/torch.h>

#include <catch_shim.hpp>

#include "torch/fused/fp8.hpp"

// Casts to 8 bits and products of them: the numbers that CPUs compute.
namespace gpu_fp8_test {

namespace fused = autopar::fused;
using fused::Fp8Scale;
using fused::Fp8Sides;
using torch::Tensor;

Fp8Scale scale_of(double factor, at::Device device) {
  const auto one = torch::TensorOptions(torch::kFloat).device(device);
  return {torch::full({1}, factor, one), torch::full({1}, 1 / factor, one), torch::zeros({1}, one)};
}

Tensor bytes(const Tensor& in_8_bits) { return in_8_bits.view(torch::kByte).cpu(); }

Tensor random(at::IntArrayRef sizes) { return torch::randn(sizes, at::kCUDA).to(torch::kBFloat16); }

TEST_CASE("fp8 casts: the bits of CPUs, by rows and by columns", "[gpu][fp8]") {
  struct Case {
    std::int64_t rows, columns;
    double factor;
  };
  for (const auto format : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    for (const auto& [rows, columns, factor] :
         std::vector<Case>{{1, 16, 1}, {130, 144, 64}, {1000, 2048, 128}, {4096, 6144, 0.5}, {513, 48, 4096}}) {
      INFO(rows << " x " << columns << " by " << factor);
      const auto matrix = random({rows, columns}).mul_(10);
      const auto here = scale_of(factor, at::kCUDA), there = scale_of(factor, at::kCPU);
      const auto made = fused::cast_to_fp8(matrix, format, here, Fp8Sides::kBoth);
      const auto wanted = fused::cast_to_fp8(matrix.cpu(), format, there, Fp8Sides::kBoth);
      CHECK(torch::equal(bytes(made.rows), bytes(wanted.rows)));
      CHECK(torch::equal(bytes(made.columns), bytes(wanted.columns)));
      CHECK(here.most.item<float>() == there.most.item<float>());
      const auto columns_alone = fused::cast_to_fp8(matrix, format, here, Fp8Sides::kColumns);
      CHECK(torch::equal(bytes(columns_alone.columns), bytes(wanted.columns)));
    }
  }
}

// Hopper adds the products of an instruction with fewer bits than single precision has (DeepSeek-V3, section 3.3.2): an
// H200's sums differ by 1.2e-4.
TEST_CASE("fp8 products: sums in single precision, as on CPUs", "[gpu][fp8]") {
  const auto a = random({1000, 512}), b = random({768, 512}), bias = random({768});
  for (const auto format : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    const auto of_a = fused::cast_to_fp8(a, format, scale_of(64, at::kCUDA), Fp8Sides::kRows);
    const auto of_b = fused::cast_to_fp8(b, at::kFloat8_e4m3fn, scale_of(32, at::kCUDA), Fp8Sides::kRows);
    const fused::Fp8Rows rows_a{of_a.rows, of_a.unit}, rows_b{of_b.rows, of_b.unit};
    const auto exact = (of_a.rows.to(torch::kDouble) / 64).mm(of_b.rows.to(torch::kDouble).t() / 32);
    const auto error = [&](const Tensor& made, const Tensor& wanted) {
      return ((made.to(torch::kDouble) - wanted).norm() / wanted.norm()).item<double>();
    };
    CHECK(error(fused::fp8_product(rows_a, rows_b, {}, at::kFloat), exact) <= 5e-4);
    CHECK(error(fused::fp8_product(rows_a, rows_b, {}, at::kBFloat16), exact) <= 3e-3);
    CHECK(error(fused::fp8_product(rows_a, rows_b, bias, at::kBFloat16), exact + bias.to(torch::kDouble)) <= 3e-3);
    const auto sum = torch::ones({1000, 768}, torch::TensorOptions(torch::kFloat).device(at::kCUDA));
    fused::put_fp8_product(rows_a, rows_b, sum, fused::Destination::kAdds);
    CHECK(error(sum, exact + 1) <= 5e-4);
    sum.fill_(NAN);
    fused::put_fp8_product(rows_a, rows_b, sum, fused::Destination::kIsWritten);
    CHECK(error(sum, exact) <= 5e-4);
  }
}

}  // namespace gpu_fp8_test
