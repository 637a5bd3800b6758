#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include <catch_shim.hpp>

#include "cuda_on_cpu/cuda_on_cpu.hpp"
#include "cuda_on_cpu/sources.hpp"
#include "torch/kernels/layer_norm_source.hpp"
#include "unit/kernels/numbers.hpp"

namespace kernels_layer_norm_test {

using namespace cuda_on_cpu;
using kernels_test::Numbers;
using Shape = autopar::LayerNormGradientShape;

struct Case {
  std::size_t rows, packs_of_row;
  unsigned threads, packs_of_thread;
  unsigned gradient_blocks;
  bool has_sum_gradient = true;
};

/// Data [rows, columns].
struct Operands {
  std::size_t rows, columns;
  Numbers input, residual, weight, bias;
  Numbers of_result, of_sum;  ///< gradients
};

struct Outcome {
  Numbers sum, result, statistics, of_input, of_weight, of_bias;
  Numbers columns;  ///< sums of of_input as it is stored
};

constexpr double kEps = 1e-5;

Operands operands_of(std::size_t rows, std::size_t columns, bool has_sum_gradient) {
  using kernels_test::drawn;
  const auto elements = rows * columns;
  return {rows,
          columns,
          drawn(elements, 1),
          drawn(elements, 2),
          drawn(columns, 3),
          drawn(columns, 4),
          drawn(elements, 5),
          has_sum_gradient ? drawn(elements, 6) : Numbers(elements, 0)};
}

/// In double precision, of the sum as the type rounds it.
template <class T>
Outcome exact_outcome(const Operands& of) {
  const auto columns = of.columns;
  const auto n = static_cast<double>(columns);
  Outcome made{{}, {}, Numbers(2 * of.rows), {}, Numbers(columns), Numbers(columns), {}};
  for (std::size_t i = 0; i < of.input.size(); ++i)
    made.sum.push_back(number_of(rounded<T>(of.input[i] + of.residual[i])));
  for (std::size_t row = 0; row < of.rows; ++row) {
    const auto* const s = made.sum.data() + row * columns;
    const auto* const dy = of.of_result.data() + row * columns;
    double mean = 0, variance = 0, mean_g = 0, mean_gh = 0;
    for (std::size_t i = 0; i < columns; ++i) mean += s[i] / n;
    for (std::size_t i = 0; i < columns; ++i) variance += (s[i] - mean) * (s[i] - mean) / n;
    const double inverse = 1 / std::sqrt(variance + kEps);
    made.statistics[row] = mean;
    made.statistics[of.rows + row] = inverse;
    for (std::size_t i = 0; i < columns; ++i) {
      const double h = (s[i] - mean) * inverse;
      made.result.push_back(h * of.weight[i] + of.bias[i]);
      made.of_weight[i] += dy[i] * h;
      made.of_bias[i] += dy[i];
      mean_g += dy[i] * of.weight[i] / n;
      mean_gh += dy[i] * of.weight[i] * h / n;
    }
    for (std::size_t i = 0; i < columns; ++i) {
      const double h = (s[i] - mean) * inverse;
      made.of_input.push_back(of.of_sum[row * columns + i] + (dy[i] * of.weight[i] - mean_g - h * mean_gh) * inverse);
    }
  }
  return made;
}

template <class T, class W>
Outcome outcome_of_kernels(CudaOnCpu& gpu, const Case& one, const Operands& of) {
  const auto elements = of.rows * of.columns;
  const auto rows = static_cast<long long>(of.rows);
  const int columns = static_cast<int>(of.columns), blocks = static_cast<int>(one.gradient_blocks);
  const auto form = std::string(kName<T>) + "_" + kName<W> + "_" + std::to_string(one.packs_of_thread);
  const auto* input = gpu.reads<T>("input", of.input);
  const auto* residual = gpu.reads<T>("residual", of.residual);
  const auto* weight = gpu.reads<W>("weight", of.weight);
  const auto* bias = gpu.reads<W>("bias", of.bias);
  auto* const sum = gpu.room<T>("sum", elements);
  auto* const result = gpu.room<T>("result", elements);
  auto* const statistics = gpu.room<float>("statistics", 2 * of.rows);
  gpu.launch("add_layer_norm_" + form, {static_cast<unsigned>(rows), 1, one.threads, 1}, input, residual, weight, bias,
             sum, result, statistics, rows, columns, static_cast<float>(kEps));
  const auto* of_result = gpu.reads<T>("gradient of the result", of.of_result);
  const auto* of_sum = one.has_sum_gradient ? gpu.reads<T>("gradient of the sum", of.of_sum) : nullptr;
  auto* const of_input = gpu.room<T>("gradient of the input", elements);
  auto* const partial = gpu.room<float>("partial sums", Shape::kSums * one.gradient_blocks * of.columns);
  gpu.launch("add_layer_norm_gradient_" + form, {one.gradient_blocks, 1, one.threads, 1}, of_result, of_sum, sum,
             weight, statistics, of_input, partial, rows, columns);
  auto* const of_weight = gpu.room<W>("gradient of the weight", of.columns);
  auto* const of_bias = gpu.room<W>("gradient of the bias", of.columns);
  auto* const sums = gpu.room<float>("sums of the gradient of the input", of.columns);
  gpu.launch(std::string("add_layer_norm_sums_") + kName<W>, Shape::adding_up(columns), partial, blocks, of_weight,
             of_bias, sums, columns);
  return {gpu.numbers(sum),       gpu.numbers(result),  gpu.numbers(statistics), gpu.numbers(of_input),
          gpu.numbers(of_weight), gpu.numbers(of_bias), gpu.numbers(sums)};
}

template <class T, class W>
void check(const Case& one) {
  const auto of = operands_of(one.rows, one.packs_of_row * 16 / sizeof(T), one.has_sum_gradient);
  const auto exact = exact_outcome<T>(of);
  const auto made = in_every_order(layer_norm, [&](CudaOnCpu& gpu) { return outcome_of_kernels<T, W>(gpu, one, of); });
  INFO(of.rows << " rows of " << of.columns << ", " << kName<T> << " and " << kName<W>);
  constexpr double kSingle = 16 * kEpsilon<float>;
  const double of_sums = 8 * kEpsilon<float> * std::sqrt(one.rows);  // of numbers about 1
  Numbers columns(of.columns);
  for (std::size_t i = 0; i < made.of_input.size(); ++i) columns[i % of.columns] += made.of_input[i];
  CHECK(made.sum == exact.sum);
  CHECK(kernels_test::worst_error(made.statistics, exact.statistics) <= kSingle);
  CHECK(kernels_test::worst_error(made.result, exact.result) <= kEpsilon<T> + kSingle);
  CHECK(kernels_test::worst_error(made.of_input, exact.of_input) <= kEpsilon<T> + kSingle);
  CHECK(kernels_test::worst_error(made.of_weight, exact.of_weight) <= kEpsilon<W> + of_sums);
  CHECK(kernels_test::worst_error(made.of_bias, exact.of_bias) <= kEpsilon<W> + of_sums);
  CHECK(kernels_test::worst_error(made.columns, columns) <= of_sums);
}

TEST_CASE("layer_norm: sum, norm and gradients are those of double precision") {
  const std::vector<Case> cases{{1, 1, 32, 1, 1},  {5, 27, 32, 1, 3, false},  {19, 33, 64, 1, 19},
                                {4, 49, 32, 2, 2}, {3, 130, 96, 2, 3, false}, {7, 101, 32, 4, 2}};
  for (const auto& one : cases) {
    check<float, float>(one);
    check<Bf16, float>(one);
    check<Bf16, Bf16>(one);
    check<F16, float>(one);
    check<F16, F16>(one);
  }
  CHECK(layer_norm.never_launched().empty());
}

TEST_CASE("layer_norm: rows far from zero keep their variance") {
  auto of = operands_of(3, 64, true);
  for (auto& number : of.input) number += 4096;
  const auto exact = exact_outcome<float>(of);
  const auto made = in_every_order(layer_norm, [&](CudaOnCpu& gpu) {
    return outcome_of_kernels<float, float>(gpu, {3, 16, 32, 1, 2}, of);
  });
  CHECK(kernels_test::worst_error(made.result, exact.result) <= 4096 * 2 * kEpsilon<float>);
}

}  // namespace kernels_layer_norm_test
