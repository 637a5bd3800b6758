#include <cstdint>
#include <vector>

#include <torch/torch.h>

#include <catch_shim.hpp>

#include "torch/fused/column_sums.hpp"

// Sums of columns in kernels of the library's own against libtorch's in double precision.
namespace gpu_column_sums_test {

using torch::Tensor;

/// The worst column, beside the largest.
double error(const Tensor& sum, const Tensor& exact) {
  if (exact.numel() == 0) return 0;
  return ((sum.to(at::kDouble) - exact).abs().max() / (exact.abs().max() + 1e-30)).item<double>();
}

void check(const Tensor& rows) {
  const auto exact = rows.to(at::kDouble).sum(0);
  for (const auto type : {at::kFloat, rows.scalar_type()}) {
    INFO(rows.sizes() << " of strides " << rows.strides() << ", " << c10::toString(rows.scalar_type()) << " to "
                      << c10::toString(type));
    const auto ours = autopar::fused::column_sums(rows, type);
    REQUIRE(ours.scalar_type() == type);
    REQUIRE(ours.sizes() == exact.sizes());
    CHECK(error(ours, exact) <= 1.5 * error(rows.sum(0, false, type), exact) + 1e-7);
    CHECK(torch::equal(ours, autopar::fused::column_sums(rows, type)));
    const auto start = torch::randn(exact.sizes(), rows.options().dtype(type));
    auto added = start.clone();
    autopar::fused::add_column_sums(rows, type, added);
    const double rounding = type == at::kFloat ? 1e-6 : type == at::kHalf ? 2e-3 : 1.6e-2;
    CHECK(error(added, start.to(at::kDouble) + exact) <= rounding);
  }
}

TEST_CASE("column sums: error <= 1.5x libtorch's, bitwise repeatable", "[gpu]") {
  torch::manual_seed(11);
  const std::vector<std::vector<std::int64_t>> sizes{{8192, 2048}, {4096, 6144}, {1, 8},      {1, 24},    {33, 264},
                                                     {1000, 1000}, {517, 8},     {20000, 16}, {3, 50304}, {300, 1001},
                                                     {129, 5},     {0, 16},      {16, 0},     {2, 1}};
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto& size : sizes) check((torch::randn(size, at::kCUDA) + 0.01).to(type));
    const auto wide = torch::randn({777, 640}, at::kCUDA).to(type);
    check(wide.narrow(1, 64, 512));  // whole packs
    check(wide.narrow(1, 1, 512));   // not where packs begin
    check(wide.narrow(1, 0, 509));
    check(wide.t());
    check(wide.slice(0, 0, 777, 3));
    check(wide[0].expand({50, 640}));
  }
}

}  // namespace gpu_column_sums_test
