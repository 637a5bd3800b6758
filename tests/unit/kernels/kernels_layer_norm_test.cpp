#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <catch_shim.hpp>

#include "cuda_on_cpu/cuda_on_cpu.hpp"
#include "cuda_on_cpu/sources.hpp"
#include "kernels/layer_norm_source.hpp"
#include "unit/kernels/numbers.hpp"

namespace kernels_layer_norm_test {

using namespace cuda_on_cpu;
using kernels_test::Numbers;
using Shape = autopar::kernels::LayerNormGradientShape;

struct Case {
  std::size_t rows, packs_of_row;
  unsigned threads, packs_of_thread;
  unsigned gradient_blocks, rows_of_block;  ///< at a time, for the gradient
  bool has_sum_gradient = true;
};

/// The words of Philox 4x32-10, as its authors define them.
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const auto first = std::uint64_t{0xD2511F53} * counter[0], second = std::uint64_t{0xCD9E8D57} * counter[2];
    const auto high = [](std::uint64_t product) { return static_cast<std::uint32_t>(product >> 32); };
    counter = {high(second) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(second),
               high(first) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(first)};
    key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
  }
  return counter;
}

/// What is dropped of the input.
struct Drop {
  std::uint64_t seed;
  double kept;               ///< the probability
  bool seed_on_gpu = false;  ///< a pointer in place of the value

  [[nodiscard]] double scale() const { return 1 / kept; }
  [[nodiscard]] std::uint32_t below() const { return static_cast<std::uint32_t>(kept * 0x1p32); }
  [[nodiscard]] bool keeps(std::uint64_t element) const {
    const auto counter = element / 4;
    const auto words = philox({static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0},
                              {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
    return words[element % 4] < below();
  }
  /// What an element becomes, and a gradient of it.
  [[nodiscard]] double of(double number, std::size_t element) const { return keeps(element) ? number * scale() : 0; }
};

/// Data [rows, columns].
struct Operands {
  std::size_t rows, columns;
  Numbers input, residual, weight, bias;
  Numbers of_result, of_sum;  ///< gradients
  std::optional<Drop> drop{};
};

struct Outcome {
  Numbers sum, result, statistics, of_input, of_residual, of_weight, of_bias;
  Numbers columns;                           ///< sums of of_input as it is stored
  Numbers weight_in_single, bias_in_single;  ///< those of the weight and the bias, of any type
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
          has_sum_gradient ? drawn(elements, 6) : Numbers(elements, 0),
          {}};
}

/// In double precision, of the sum as the type rounds it.
template <class T>
Outcome exact_outcome(const Operands& of) {
  const auto columns = of.columns;
  const auto n = static_cast<double>(columns);
  Outcome made{{}, {}, Numbers(2 * of.rows), {}, {}, Numbers(columns), Numbers(columns), {}, {}, {}};
  const auto kept = [&](double number, std::size_t at) { return of.drop ? of.drop->of(number, at) : number; };
  for (std::size_t i = 0; i < of.input.size(); ++i)
    made.sum.push_back(number_of(rounded<T>(kept(of.input[i], i) + of.residual[i])));
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
      const auto at = row * columns + i;
      made.of_residual.push_back(of.of_sum[at] + (dy[i] * of.weight[i] - mean_g - h * mean_gh) * inverse);
      made.of_input.push_back(kept(made.of_residual.back(), at));
    }
  }
  return made;
}

/// Launches the kernel, or where something is dropped the one that does so, with its draws behind these arguments.
template <class... Arguments>
void launch(CudaOnCpu& gpu, const std::string& kernel, const autopar::kernels::LaunchShape& shape,
            const std::optional<Drop>& drop, Arguments... arguments) {
  if (!drop) return gpu.launch(kernel, shape, arguments...);
  auto* const seed = gpu.room<unsigned long long>("seed", 1);
  *seed = drop->seed;
  const unsigned long long* const at = drop->seed_on_gpu ? seed : nullptr;
  gpu.launch("dropout_" + kernel, shape, arguments..., at, drop->seed_on_gpu ? 0ull : drop->seed, drop->below(),
             static_cast<float>(drop->scale()));
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
  launch(gpu, "add_layer_norm_" + form, {static_cast<unsigned>(rows), 1, one.threads, 1}, of.drop, input, residual,
         weight, bias, sum, result, statistics, rows, columns, static_cast<float>(kEps));
  const auto* of_result = gpu.reads<T>("gradient of the result", of.of_result);
  const auto* of_sum = one.has_sum_gradient ? gpu.reads<T>("gradient of the sum", of.of_sum) : nullptr;
  auto* const of_residual = gpu.room<T>("gradient of the residual", elements);
  auto* const of_input = of.drop ? gpu.room<T>("gradient of the input", elements) : of_residual;
  auto* const partial = gpu.room<float>("partial sums", Shape::kSums * one.gradient_blocks * of.columns);
  const autopar::kernels::LaunchShape shape{one.gradient_blocks, 1, one.threads, one.rows_of_block};
  const auto differentiate = [&](auto... dropped) {
    launch(gpu, "add_layer_norm_gradient_" + form, shape, of.drop, of_result, of_sum, sum, weight, statistics,
           of_residual, partial, static_cast<int>(rows), columns, dropped...);
  };
  if (of.drop)
    differentiate(of_input);
  else
    differentiate();
  auto* const of_weight = gpu.room<W>("gradient of the weight", of.columns);
  auto* const of_bias = gpu.room<W>("gradient of the bias", of.columns);
  auto* const sums = gpu.room<float>("sums of the gradient of the input", of.columns);
  gpu.launch(std::string("add_layer_norm_sums_") + kName<W>, Shape::adding_up(columns), partial, blocks, of_weight,
             of_bias, sums, columns);
  auto* const weight_in_single = gpu.room<float>("gradient of the weight in single precision", of.columns);
  auto* const bias_in_single = gpu.room<float>("gradient of the bias in single precision", of.columns);
  gpu.launch("add_layer_norm_sums_f32", Shape::adding_up(columns), partial, blocks, weight_in_single, bias_in_single,
             sums, columns);
  return {gpu.numbers(sum),           gpu.numbers(result),      gpu.numbers(statistics),
          gpu.numbers(of_input),      gpu.numbers(of_residual), gpu.numbers(of_weight),
          gpu.numbers(of_bias),       gpu.numbers(sums),        gpu.numbers(weight_in_single),
          gpu.numbers(bias_in_single)};
}

template <class T, class W>
void check(const Case& one, const std::optional<Drop>& drop) {
  auto of = operands_of(one.rows, one.packs_of_row * 16 / sizeof(T), one.has_sum_gradient);
  of.drop = drop;
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
  CHECK(kernels_test::worst_error(made.of_residual, exact.of_residual) <= kEpsilon<T> + kSingle);
  CHECK(kernels_test::worst_error(made.of_weight, exact.of_weight) <= kEpsilon<W> + of_sums);
  CHECK(kernels_test::worst_error(made.of_bias, exact.of_bias) <= kEpsilon<W> + of_sums);
  CHECK(kernels_test::worst_error(made.weight_in_single, exact.of_weight) <= of_sums);
  CHECK(kernels_test::worst_error(made.bias_in_single, exact.of_bias) <= of_sums);
  CHECK(kernels_test::worst_error(made.columns, columns) <= of_sums);
}

TEST_CASE("layer_norm: sum, norm and gradients match fp64") {
  const std::vector<Case> cases{{1, 1, 32, 1, 1, 1},  {5, 27, 32, 1, 3, 1, false},  {19, 33, 64, 1, 3, 3},
                                {4, 49, 32, 2, 2, 1}, {3, 130, 96, 2, 1, 2, false}, {7, 101, 32, 4, 2, 1}};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    // Scaled by a power of two, a sum is rounded once.
    for (const auto& drop : {std::optional<Drop>(), std::optional(Drop{0x1F2E3D4C5B6A7988, 0.25, i % 2 == 1})}) {
      INFO((drop ? "drops" : "whole"));
      check<float, float>(cases[i], drop);
      check<Bf16, float>(cases[i], drop);
      check<Bf16, Bf16>(cases[i], drop);
      check<F16, float>(cases[i], drop);
      check<F16, F16>(cases[i], drop);
    }
  }
  CHECK(layer_norm.never_launched().empty());
}

/// 1 for each element that a forward of zeros and ones keeps, and 0 for the others.
template <class T>
Numbers kept_by_kernel(const Drop& drop, std::size_t rows, std::size_t packs) {
  auto of = operands_of(rows, packs * 16 / sizeof(T), true);
  of.input.assign(of.input.size(), 1);
  of.residual.assign(of.residual.size(), 0);
  of.drop = drop;
  CudaOnCpu gpu(layer_norm, {});
  auto made = outcome_of_kernels<T, float>(gpu, {rows, packs, 64, 1, 2, 1}, of).sum;
  const auto of_kept = number_of(rounded<T>(static_cast<float>(drop.scale())));
  for (auto& number : made) {
    if (number != 0) CHECK(number == of_kept);
    number = number == 0 ? 0 : 1;
  }
  return made;
}

TEST_CASE("layer_norm: dropout is Philox, unbiased, differs by seed") {
  CHECK(philox({0, 0, 0, 0}, {0, 0}) == std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        std::array<std::uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
  constexpr std::size_t kRows = 40, kPacks = 64, kPlaces = 8, kColumns = kPacks * kPlaces;
  const Drop drop{0xFEDCBA9876543210, 0.9};
  const auto kept = kept_by_kernel<Bf16>(drop, kRows, kPacks);
  Numbers of_place(kPlaces, 0);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    CHECK(kept[i] == (drop.keeps(i) ? 1 : 0));
    of_place[i % kPlaces] += kept[i];
  }
  const double draws = kRows * kPacks, deviation = std::sqrt(0.9 * 0.1 / draws);
  for (const auto sum : of_place) CHECK(std::fabs(sum / draws - 0.9) < 4 * deviation);
  CHECK(kept == kept_by_kernel<float>(drop, 4 * kRows, kPacks / 2));  // by element, whatever a pack has
  const auto other = kept_by_kernel<Bf16>({drop.seed + 1, 0.9}, kRows, kPacks);
  double same = 0;
  for (std::size_t i = 0; i < kept.size(); ++i) same += kept[i] == other[i] ? 1 : 0;
  const double all = kRows * kColumns, alike = 0.9 * 0.9 + 0.1 * 0.1;
  CHECK(std::fabs(same / all - alike) < 4 * std::sqrt(alike * (1 - alike) / all));
}

TEST_CASE("layer_norm: variance survives a mean far from zero") {
  auto of = operands_of(3, 64, true);
  for (auto& number : of.input) number += 4096;
  const auto exact = exact_outcome<float>(of);
  const auto made = in_every_order(layer_norm, [&](CudaOnCpu& gpu) {
    return outcome_of_kernels<float, float>(gpu, {3, 16, 32, 1, 2, 1}, of);
  });
  CHECK(kernels_test::worst_error(made.result, exact.result) <= 4096 * 2 * kEpsilon<float>);
}

}  // namespace kernels_layer_norm_test
