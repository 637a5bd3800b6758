#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include <catch_shim.hpp>

#include "cuda_on_cpu/cuda_on_cpu.hpp"
#include "cuda_on_cpu/sources.hpp"
#include "kernels/batch_norm_source.hpp"
#include "unit/kernels/numbers.hpp"

namespace kernels_batch_norm_test {

using namespace cuda_on_cpu;
using kernels_test::Numbers;

struct Case {
  std::size_t rows, channels;
  unsigned blocks_y;
};

/// Whose memory gets the gradient of relu's operand, where the first pass writes it.
enum class Passed { kOwn, kFirst, kSecond };

struct Form {
  bool relu, adds;
  bool weighs = true;            ///< weight, bias and running statistics
  bool has_two_readers = false;  ///< of the result
  Passed passed = Passed::kOwn;

  [[nodiscard]] bool reads_result() const { return relu && adds; }
  [[nodiscard]] bool writes_passed() const { return reads_result() || has_two_readers; }
};

/// Data [rows, channels].
struct Operands {
  Numbers input, residual, weight, bias, running_mean, running_var;
  Numbers of_result, of_result_too;  ///< gradients, of both readers
};

struct Outcome {
  Numbers result, statistics, running_mean, running_var;
  Numbers of_input, of_weight, of_bias;
  Numbers passed;  ///< to relu's operand; empty unless written
};

constexpr double kMomentum = 0.1, kEps = 1e-5;

Operands operands_of(const Case& one, const Form& form) {
  using kernels_test::drawn;
  const auto elements = one.rows * one.channels;
  Operands made{drawn(elements, 1),
                form.adds ? drawn(elements, 2) : Numbers(elements, 0),
                form.weighs ? drawn(one.channels, 3) : Numbers(one.channels, 1),
                form.weighs ? drawn(one.channels, 4) : Numbers(one.channels, 0),
                drawn(one.channels, 5),
                drawn(one.channels, 6),
                drawn(elements, 7),
                form.has_two_readers ? drawn(elements, 8) : Numbers(elements, 0)};
  for (std::size_t i = 0; i < elements; ++i) made.input[i] += static_cast<double>(i % one.channels % 3);  // other means
  return made;
}

struct Moments {
  double mean = 0, variance = 0;
};
Moments moments_of(const Case& one, const Numbers& input, std::size_t channel) {
  const auto rows = static_cast<double>(one.rows);
  Moments made;
  for (std::size_t row = 0; row < one.rows; ++row) made.mean += input[row * one.channels + channel] / rows;
  for (std::size_t row = 0; row < one.rows; ++row) {
    const double by = input[row * one.channels + channel] - made.mean;
    made.variance += by * by / rows;
  }
  return made;
}

/// In double precision; the gradient of relu's operand is rounded where it is written.
template <class T>
Outcome exact_outcome(const Case& one, const Form& form, const Operands& of) {
  const auto rows = static_cast<double>(one.rows);
  const auto elements = of.input.size();
  Outcome made{Numbers(elements), Numbers(2 * one.channels), of.running_mean, of.running_var, Numbers(elements), {}, {},
               Numbers(elements)};
  for (std::size_t channel = 0; channel < one.channels; ++channel) {
    const auto [mean, variance] = moments_of(one, of.input, channel);
    const double inverse = 1 / std::sqrt(variance + kEps);
    made.statistics[channel] = mean;
    made.statistics[one.channels + channel] = inverse;
    made.running_mean[channel] += kMomentum * (mean - of.running_mean[channel]);
    made.running_var[channel] += kMomentum * (variance * rows / (rows - 1) - of.running_var[channel]);
    double sum = 0, sum_with_h = 0;
    for (auto at = channel; at < elements; at += one.channels) {
      const double h = (of.input[at] - mean) * inverse;
      const double z = h * of.weight[channel] + of.bias[channel] + of.residual[at];
      made.result[at] = form.relu ? std::max(0.0, z) : z;
      const double passed = form.relu && z <= 0 ? 0 : of.of_result[at] + of.of_result_too[at];
      made.passed[at] = form.writes_passed() ? number_of(rounded<T>(passed)) : passed;
      sum += passed;
      sum_with_h += passed * h;
    }
    for (auto at = channel; at < elements; at += one.channels) {
      const double h = (of.input[at] - mean) * inverse;
      made.of_input[at] = of.weight[channel] * inverse * (made.passed[at] - sum / rows - h * sum_with_h / rows);
    }
    made.of_weight.push_back(sum_with_h);
    made.of_bias.push_back(sum);
  }
  if (!form.writes_passed()) made.passed.clear();
  return made;
}

template <class T>
autopar::kernels::LaunchShape over_rows(const Case& one) {
  const auto packs = one.channels * sizeof(T) / 16;
  const auto threads_x = std::bit_floor(std::min<std::size_t>(packs, 64));
  return {kernels_test::blocks_for(packs, threads_x), one.blocks_y, static_cast<unsigned>(threads_x),
          static_cast<unsigned>(autopar::kernels::BatchNormTables::kThreads / threads_x)};
}

/// What the forward leaves to the backward.
template <class T>
struct Forward {
  const T* input;
  T* result;
  float *statistics, *affine, *partial;
};

template <class T>
Forward<T> run_forward(CudaOnCpu& gpu, const Case& one, const Form& form, const Operands& of, Outcome& made) {
  const std::string type = kName<T>;
  const auto rows = static_cast<long long>(one.rows);
  const int channels = static_cast<int>(one.channels), blocks = static_cast<int>(one.blocks_y);
  const auto shape = over_rows<T>(one);
  const Forward<T> at{gpu.reads<T>("input", of.input), gpu.room<T>("result", of.input.size()),
                      gpu.room<float>("statistics", 2 * one.channels), gpu.room<float>("affine", 3 * one.channels),
                      gpu.room<float>("partial sums", 2 * one.blocks_y * one.channels)};
  const auto* residual = form.adds ? gpu.reads<T>("residual", of.residual) : nullptr;
  const auto* weight = form.weighs ? gpu.reads<float>("weight", of.weight) : nullptr;
  const auto* bias = form.weighs ? gpu.reads<float>("bias", of.bias) : nullptr;
  auto* const running_mean = form.weighs ? gpu.holds<float>("running mean", of.running_mean) : nullptr;
  auto* const running_var = form.weighs ? gpu.holds<float>("running variance", of.running_var) : nullptr;
  gpu.launch("batch_norm_sums_" + type, shape, at.input, at.partial, rows, channels);
  gpu.launch("batch_norm_statistics_" + type, kernels_test::over_columns(one.channels), at.partial, blocks, at.input,
             weight, bias, running_mean, running_var, at.statistics, at.affine, rows, channels, kMomentum, kEps);
  gpu.launch("batch_norm_apply_" + type, shape, at.input, residual, at.affine, at.result, rows, channels,
             static_cast<int>(form.relu));
  made.result = gpu.numbers(at.result);
  made.statistics = gpu.numbers(at.statistics);
  if (form.weighs) made.running_mean = gpu.numbers(running_mean), made.running_var = gpu.numbers(running_var);
  return at;
}

template <class T>
Outcome outcome_of_kernels(CudaOnCpu& gpu, const Case& one, const Form& form, const Operands& of) {
  Outcome made;
  const auto at = run_forward<T>(gpu, one, form, of, made);
  const auto rows = static_cast<long long>(one.rows);
  const int channels = static_cast<int>(one.channels), blocks = static_cast<int>(one.blocks_y);
  const auto shape = over_rows<T>(one);
  const std::string mask = !form.relu ? "" : form.reads_result() ? "relu_result_" : "relu_", type = kName<T>;
  T* const first = gpu.holds<T>("gradient of the result", of.of_result);
  T* const second = form.has_two_readers ? gpu.holds<T>("the other gradient", of.of_result_too) : nullptr;
  const T* const result = form.reads_result() ? at.result : nullptr;
  T* const passed = !form.writes_passed()            ? nullptr
                    : form.passed == Passed::kFirst  ? first
                    : form.passed == Passed::kSecond ? second
                                                     : gpu.room<T>("passed to relu's operand", of.input.size());
  gpu.launch("batch_norm_gradient_sums_" + mask + (form.has_two_readers ? "two_" : "") + type, shape, first, second,
             at.input, result, at.affine, at.partial, passed, rows, channels);
  auto* const of_weight = gpu.room<float>("gradient of the weight", one.channels);
  auto* const of_bias = gpu.room<float>("gradient of the bias", one.channels);
  auto* const factors = gpu.room<float>("factors", 3 * one.channels);
  gpu.launch("batch_norm_coefficients", kernels_test::over_columns(one.channels), at.partial, blocks, at.statistics,
             at.affine, of_weight, of_bias, factors, rows, channels, type == "f32" ? 1 : 0);
  auto* const of_input = gpu.room<T>("gradient of the input", of.input.size());
  const bool makes_passed = form.relu && !form.writes_passed();
  gpu.launch((makes_passed ? "batch_norm_gradient_relu_" : "batch_norm_gradient_") + type, shape,
             passed ? passed : first, at.input, at.affine, factors, of_input, rows, channels);
  made.of_input = gpu.numbers(of_input);
  made.of_weight = gpu.numbers(of_weight);
  made.of_bias = gpu.numbers(of_bias);
  if (passed) made.passed = gpu.numbers(passed);
  return made;
}

template <class T>
void check(const Case& one, const Form& form) {
  const auto of = operands_of(one, form);
  // Rounding moves means: what is exact is what the type holds.
  auto held = of;
  for (auto& number : held.input) number = number_of(rounded<T>(number));
  const auto exact = exact_outcome<T>(one, form, held);
  const auto made =
      in_every_order(batch_norm, [&](CudaOnCpu& gpu) { return outcome_of_kernels<T>(gpu, one, form, of); });
  INFO(one.rows << " rows, " << one.channels << " channels, " << kName<T> << (form.relu ? ", relu" : "")
                << (form.adds ? ", adds" : "") << (form.has_two_readers ? ", two readers" : ""));
  constexpr double kSingle = 32 * kEpsilon<float>;
  const double of_sums = 8 * kEpsilon<float> * std::sqrt(one.rows);  // of numbers about 1
  CHECK(kernels_test::worst_error(made.statistics, exact.statistics) <= kSingle);
  CHECK(kernels_test::worst_error(made.result, exact.result) <= kEpsilon<T> + kSingle);
  CHECK(kernels_test::worst_error(made.of_weight, exact.of_weight) <= of_sums);
  CHECK(kernels_test::worst_error(made.of_bias, exact.of_bias) <= of_sums);
  CHECK(kernels_test::worst_error(made.of_input, exact.of_input) <= kEpsilon<T> + kSingle);
  CHECK(made.passed == exact.passed);
  if (!form.weighs) return;
  CHECK(kernels_test::worst_error(made.running_mean, exact.running_mean) <= kSingle);
  CHECK(kernels_test::worst_error(made.running_var, exact.running_var) <= kSingle);
}

TEST_CASE("batch_norm: result, statistics, gradients match fp64") {
  const std::vector<Case> cases{{2, 8, 1}, {37, 40, 2}, {131, 136, 3}};
  const std::vector<Form> forms{{false, false},
                                {true, false, false},
                                {true, true},
                                {true, true, true, false, Passed::kFirst},
                                {false, false, true, true},
                                {true, false, true, true, Passed::kSecond},
                                {true, true, false, true, Passed::kFirst},
                                {true, true, true, true}};
  for (const auto& one : cases) {
    for (const auto& form : forms) kernels_test::for_each_type([&]<class T>() { check<T>(one, form); });
  }
  check<float>({9, 264, 1}, {false, true});            // two blocks of channels, the last with few
  check<F16>({9, 520, 2}, {true, false, true, true});  // of packs, too
  check<Bf16>({95, 264, 11}, {true, false});           // more blocks than threads that add up a channel
  CHECK(batch_norm.never_launched().empty());
}

TEST_CASE("batch_norm: variance survives a mean far from zero") {
  const Case one{64, 16, 1};
  const Form form{false, false};
  auto of = operands_of(one, form);
  for (auto& number : of.input) number += 4096;
  const auto exact = exact_outcome<float>(one, form, of);
  const auto made =
      in_every_order(batch_norm, [&](CudaOnCpu& gpu) { return outcome_of_kernels<float>(gpu, one, form, of); });
  CHECK(kernels_test::worst_error(made.result, exact.result) <= 4096 * 4 * kEpsilon<float>);
}

}  // namespace kernels_batch_norm_test
