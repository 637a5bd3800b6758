#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <optional>

#include <autopar/torch/polymorphism.hpp>

namespace autopar {
namespace {

using Batches = std::array<std::int64_t, 3>;
using Numbers = std::array<double, 3>;

constexpr double kFewUlps = 4 * std::numeric_limits<double>::epsilon();
constexpr double kExactIntegers = 4503599627370496.0;  // 2^52
constexpr int kLargestNumerator = 64;
constexpr int kLargestSlope = 8;

template <class Function>
auto map_numbers(const Numbers& values, Function&& function) {
  return std::array{function(values[0]), function(values[1]), function(values[2])};
}

bool all_agree(const BatchInteger& number, const Batches& batches, const Numbers& values) {
  for (std::size_t i = 0; i < 3; ++i) {
    if (!agrees(number, batches[i], values[i])) return false;
  }
  return true;
}

bool all_equal(const BatchInteger& number, const Batches& batches, const Numbers& values) {
  for (std::size_t i = 0; i < 3; ++i) {
    if (number.number_at(batches[i]) != values[i]) return false;
  }
  return true;
}

/// The batch size itself, as in `sum() / double(B)`.
std::optional<BatchInteger> solve_whole(const Batches& batches, const Numbers& values) {
  const auto is_whole = [](double x) { return std::abs(x) < kExactIntegers && x == std::floor(x); };
  if (!std::all_of(values.begin(), values.end(), is_whole)) return std::nullopt;
  const auto expr = solve_affine(batches, map_numbers(values, [](double x) { return static_cast<std::int64_t>(x); }));
  if (!expr) return std::nullopt;
  return BatchInteger{0, -1, *expr, IntegerRole::kArithmetic};
}

/// n / (a * batch + c) for a small natural number n, bit for bit.
std::optional<BatchInteger> solve_natural_quotient(const Batches& batches, const Numbers& values, NumberForm form) {
  for (int n = 1; n <= kLargestNumerator; ++n) {
    const double numerator = values[0] < 0 ? -n : n;
    const auto divisors = map_numbers(values, [&](double x) { return std::round(numerator / x); });
    const auto is_exact = [](double x) { return std::abs(x) < kExactIntegers; };
    if (!std::all_of(divisors.begin(), divisors.end(), is_exact)) return std::nullopt;
    const auto expr = solve_affine(batches, map_numbers(divisors, [](double x) { return static_cast<std::int64_t>(x); }));
    if (!expr) continue;
    const BatchInteger number{0, -1, *expr, IntegerRole::kArithmetic, form, numerator};
    if (all_equal(number, batches, values)) return number;
  }
  return std::nullopt;
}

/// The integer function of which `line` is a multiple.
std::optional<SizeExpr> integer_line(const Batches& batches, const Numbers& line) {
  const double slope = (line[1] - line[0]) / static_cast<double>(batches[1] - batches[0]);
  const double ratio = line[0] / slope - static_cast<double>(batches[0]);
  for (int a = 1; a <= kLargestSlope; ++a) {
    const double fixed = std::round(a * ratio);
    if (!(std::abs(fixed) < kExactIntegers)) return std::nullopt;
    constexpr double kRoundedOff = 1e-11;
    if (std::abs(a * ratio - fixed) > kRoundedOff * std::max(1.0, std::abs(fixed))) continue;
    return SizeExpr{a, static_cast<std::int64_t>(fixed)};
  }
  return std::nullopt;
}

/// The decimal number that somebody may have written for x.
double as_written(double x) {
  char text[40];
  std::snprintf(text, sizeof text, "%.15g", x);
  return std::strtod(text, nullptr);
}

/// k * (a * batch + c) or k / (a * batch + c) for any k.
std::optional<BatchInteger> solve_scaled(const Batches& batches, const Numbers& values, NumberForm form) {
  const bool divides = form == NumberForm::kQuotient;
  const auto expr = integer_line(batches, map_numbers(values, [&](double x) { return divides ? 1 / x : x; }));
  if (!expr) return std::nullopt;
  BatchInteger number{0, -1, *expr, IntegerRole::kArithmetic, form, 0};
  const auto factor_at = [&](std::size_t i) {
    const auto integer = static_cast<double>(expr->at(batches[i]));
    return divides ? values[i] * integer : values[i] / integer;
  };
  std::optional<BatchInteger> close;
  for (std::size_t i = 0; i < 3; ++i) {
    for (const double factor : {as_written(factor_at(i)), factor_at(i)}) {
      number.factor = factor;
      if (all_equal(number, batches, values)) return number;
      if (!close && all_agree(number, batches, values)) close = number;
    }
  }
  return close;
}

}  // namespace

bool agrees(const BatchInteger& number, std::int64_t batch, double value) {
  const double expected = number.number_at(batch);
  if (expected == value) return true;
  const bool is_exact = number.form == NumberForm::kInteger || number.form == NumberForm::kSingleQuotient;
  return !is_exact && std::abs(expected - value) <= kFewUlps * std::abs(expected);
}

std::optional<BatchInteger> solve_number(const Batches& batches, const Numbers& values) {
  const auto is_usable = [](double x) { return std::isfinite(x) && x != 0; };
  if (auto number = solve_whole(batches, values)) return number;
  if (!std::all_of(values.begin(), values.end(), is_usable)) return std::nullopt;
  if (auto number = solve_natural_quotient(batches, values, NumberForm::kQuotient)) return number;
  for (const auto form : {NumberForm::kQuotient, NumberForm::kMultiple}) {
    if (auto number = solve_scaled(batches, values, form)) return number;
  }
  const auto is_single = [](double x) { return static_cast<double>(static_cast<float>(x)) == x; };
  if (!std::all_of(values.begin(), values.end(), is_single)) return std::nullopt;
  return solve_natural_quotient(batches, values, NumberForm::kSingleQuotient);
}

}  // namespace autopar
