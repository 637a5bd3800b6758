#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <string>
#include <vector>

#include <catch_shim.hpp>

#include "cuda_on_cpu/cuda_on_cpu.hpp"
#include "cuda_on_cpu/sources.hpp"
#include "kernels/gelu_gradient_source.hpp"
#include "unit/kernels/numbers.hpp"

namespace kernels_gelu_gradient_test {

using namespace cuda_on_cpu;
using kernels_test::Numbers;
using Shape = autopar::kernels::GeluGradientShape;

struct Case {
  std::size_t rows, packs;
  std::size_t of_block;  ///< rows
};

double derivative(double x) {
  return 0.5 * std::erfc(-x / std::numbers::sqrt2) +
         x * std::exp(-x * x / 2) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
}
double derivative_of_tanh(double x) {
  const double slope = std::numbers::sqrt2 * std::numbers::inv_sqrtpi,
               t = std::tanh(slope * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope * (1 + 3 * 0.044715 * x * x);
}

struct Made {
  Numbers gradient, partial;
};

template <class T>
Made made_by_kernel(CudaOnCpu& gpu, const std::string& kernel, const Case& one, const Numbers& dy, const Numbers& x) {
  const auto blocks = kernels_test::blocks_for(one.rows, one.of_block);
  const auto* given = gpu.reads<T>("dy", dy);
  const auto* taken = gpu.reads<T>("x", x);
  auto* const made = gpu.room<T>("dx", x.size());
  auto* const partial = gpu.room<float>("partial sums", blocks * (x.size() / one.rows));
  gpu.launch(kernel + kName<T>,
             {kernels_test::blocks_for(one.packs, Shape::kPacks), blocks, Shape::kPacks, Shape::kRows}, given, taken,
             made, partial, static_cast<long long>(one.rows), static_cast<int>(one.packs),
             static_cast<int>(one.of_block));
  return {gpu.numbers(made), gpu.numbers(partial)};
}

/// Of what was stored.
Numbers sums_of_blocks(const Numbers& stored, const Case& one, std::size_t columns) {
  Numbers sums(kernels_test::blocks_for(one.rows, one.of_block) * columns);
  for (std::size_t i = 0; i < stored.size(); ++i) sums[i / columns / one.of_block * columns + i % columns] += stored[i];
  return sums;
}

template <class T>
void check(const Case& one, const std::string& kernel, double (*formula)(double)) {
  const auto columns = one.packs * 16 / sizeof(T);
  const auto dy = kernels_test::drawn(one.rows * columns, 1);
  auto x = kernels_test::drawn(one.rows * columns, 2);
  for (auto& number : x) number *= 2;
  x[0] = -30;  // beyond what either function still changes at
  x[1] = 30;
  Numbers exact;
  for (std::size_t i = 0; i < x.size(); ++i) exact.push_back(dy[i] * formula(x[i]));
  const auto made = in_every_order(gelu_gradient,
                                   [&](CudaOnCpu& gpu) { return made_by_kernel<T>(gpu, kernel, one, dy, x).gradient; });
  CudaOnCpu gpu(gelu_gradient, {});
  const auto again = made_by_kernel<T>(gpu, kernel, one, dy, x);
  INFO(kernel << kName<T> << ", " << one.rows << " rows of " << one.packs << " packs, " << one.of_block << " a block");
  CHECK(kernels_test::worst_error(made, exact) <= kEpsilon<T> + 1e-6);
  CHECK(again.gradient == made);
  CHECK(kernels_test::worst_error(again.partial, sums_of_blocks(made, one, columns)) <= 1e-5);
}

TEST_CASE("gelu_gradient: derivative, and column sums as stored") {
  const std::vector<Case> cases{
      {1, 1, 32},
      {32, 2, 32},   // all rows in flight
      {71, 33, 32},  // two blocks of columns, the last with few; the last rows are few
      {130, 3, 64},
  };
  for (const auto& one : cases) {
    kernels_test::for_each_type([&]<class T>() {
      check<T>(one, "gelu_gradient_", derivative);
      check<T>(one, "tanh_gelu_gradient_", derivative_of_tanh);
    });
  }
  CHECK(gelu_gradient.never_launched().empty());
}

/// Of all numbers of 16 bits: those of a table, and beyond its ends.
template <class T>
void check_all(const std::string& kernel, double (*formula)(double)) {
  Numbers x, exact;
  for (unsigned bits = 0; bits < 1u << 16; ++bits) {
    x.push_back(number_of(T{static_cast<std::uint16_t>(bits)}));
    exact.push_back(formula(x.back()));
  }
  const Case one{64, 128, 32};
  CudaOnCpu gpu(gelu_gradient, {});
  const auto made = made_by_kernel<T>(gpu, kernel, one, Numbers(x.size(), 1), x).gradient;
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool is_right = std::isfinite(x[i]) ? std::abs(made[i] - exact[i]) <= kEpsilon<T> * std::abs(exact[i]) + 3e-5
                                              : std::isnan(made[i]);
    wrong += is_right ? 0 : 1;
  }
  INFO(kernel << kName<T>);
  CHECK(wrong == 0);
}

TEST_CASE("gelu_gradient: right at all 16-bit values, NaN and infinity") {
  check_all<Bf16>("gelu_gradient_", derivative);
  check_all<Bf16>("tanh_gelu_gradient_", derivative_of_tanh);
  check_all<F16>("gelu_gradient_", derivative);
  check_all<F16>("tanh_gelu_gradient_", derivative_of_tanh);
}

}  // namespace kernels_gelu_gradient_test
