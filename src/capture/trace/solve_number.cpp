#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "capture/trace/polymorphism.hpp"

namespace autopar::trace {
namespace {

using Batches = std::array<std::int64_t, 3>;
using Numbers = std::array<double, 3>;

constexpr double kFewUlps = 4 * std::numeric_limits<double>::epsilon();
constexpr double kExactIntegers = 4503599627370496.0;  // 2^52
constexpr int kLargestNumerator = 64;
constexpr int kLargestSlope = 8;
constexpr int kLargestPairNumerator = 8;
constexpr double kLargestLinear = 8, kLargestFixed = 64;  // of batch² + a * batch + c

template <class Function>
auto map_numbers(const Numbers& values, Function&& function) {
  return std::array{function(values[0]), function(values[1]), function(values[2])};
}

using Factors = std::vector<BatchInteger>;
using Integers = std::array<std::int64_t, 3>;

Integers rounded(const Numbers& values) {
  return map_numbers(values, [](double x) { return static_cast<std::int64_t>(x); });
}

bool all_agree(const Factors& number, const Batches& batches, const Numbers& values) {
  for (std::size_t i = 0; i < 3; ++i) {
    if (!agrees(number, batches[i], values[i])) return false;
  }
  return true;
}

bool all_equal(const Factors& number, const Batches& batches, const Numbers& values) {
  for (std::size_t i = 0; i < 3; ++i) {
    if (ir::number_at(number, batches[i]) != values[i]) return false;
  }
  return true;
}

BatchInteger factor_of(std::int64_t per_sample, std::int64_t fixed) {
  return {0, -1, {per_sample, fixed}, IntegerRole::kArithmetic};
}

/// a * batch² + b * batch + c as a product of two, if its roots are rational.
Factors factorise(std::int64_t a, std::int64_t b, std::int64_t c) {
  const double discriminant =
      static_cast<double>(b) * static_cast<double>(b) - 4.0 * static_cast<double>(a) * static_cast<double>(c);
  const double root = std::round(std::sqrt(std::max(discriminant, 0.0)));
  if (discriminant > kExactIntegers || root * root != discriminant) return {};
  const auto above = -b + static_cast<std::int64_t>(root), below = 2 * a;
  const auto common = std::gcd(above, below) * (below < 0 ? -1 : 1);
  const auto slope = below / common, zero = above / common;  // slope * batch - zero
  if (zero == 0) return {factor_of(slope, 0), factor_of(a / slope, b / slope)};
  return {factor_of(slope, -zero), factor_of(a / slope, -c / zero)};
}

/// The batch size itself, as in `sum() / double(B)`.
Factors solve_whole(const Batches& batches, const Numbers& values) {
  const auto is_whole = [](double x) { return std::abs(x) < kExactIntegers && x == std::floor(x); };
  if (!std::all_of(values.begin(), values.end(), is_whole)) return {};
  return solve_integer(batches, rounded(values));
}

/// n / (a * batch + c), or one with two such factors, for a small natural number n, bit for bit.
Factors solve_natural_quotient(const Batches& batches, const Numbers& values, NumberForm form, std::size_t factors) {
  for (int n = 1; n <= (factors > 1 ? kLargestPairNumerator : kLargestNumerator); ++n) {
    const double numerator = values[0] < 0 ? -n : n;
    const auto divisors = map_numbers(values, [&](double x) { return std::round(numerator / x); });
    const auto is_exact = [](double x) { return std::abs(x) < kExactIntegers; };
    if (!std::all_of(divisors.begin(), divisors.end(), is_exact)) return {};
    auto number = solve_integer(batches, rounded(divisors));
    if (number.size() != factors) continue;
    number.back().form = form;
    number.back().factor = numerator;
    if (all_equal(number, batches, values)) return number;
  }
  return {};
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

/// (batch + a) * (batch + c) with small a and c, of which `curve` is a multiple.
Factors integer_parabola(const Batches& batches, const Numbers& curve) {
  const Numbers b{static_cast<double>(batches[0]), static_cast<double>(batches[1]), static_cast<double>(batches[2])};
  const double slope = (curve[1] - curve[0]) / (b[1] - b[0]);
  const double leading = ((curve[2] - curve[0]) / (b[2] - b[0]) - slope) / (b[2] - b[1]);
  const double linear = slope / leading - b[0] - b[1];
  const double fixed = curve[0] / leading - b[0] * (b[0] + linear);
  constexpr double kRoundedOff = 1e-9;
  const auto is_whole = [](double x, double most) {
    return std::abs(x) <= most && std::abs(x - std::round(x)) <= kRoundedOff;
  };
  if (!is_whole(linear, kLargestLinear) || !is_whole(fixed, kLargestFixed)) return {};
  return factorise(1, std::llround(linear), std::llround(fixed));
}

/// k * n or k / n for any k, with n of one factor or of two.
Factors solve_scaled(const Batches& batches, const Numbers& values, NumberForm form, std::size_t factors) {
  const bool divides = form == NumberForm::kQuotient;
  const auto curve = map_numbers(values, [&](double x) { return divides ? 1 / x : x; });
  Factors number;
  if (factors > 1) {
    number = integer_parabola(batches, curve);
  } else if (const auto line = integer_line(batches, curve)) {
    number = {factor_of(line->per_sample, line->fixed)};
  }
  if (number.empty()) return {};
  number.back().form = form;
  const auto factor_at = [&](std::size_t i) {
    const auto integer = static_cast<double>(ir::integer_at(number, batches[i]));
    return divides ? values[i] * integer : values[i] / integer;
  };
  Factors close;
  for (std::size_t i = 0; i < 3; ++i) {
    for (const double factor : {as_written(factor_at(i)), factor_at(i)}) {
      number.back().factor = factor;
      if (all_equal(number, batches, values)) return number;
      if (close.empty() && all_agree(number, batches, values)) close = number;
    }
  }
  return close;
}

}  // namespace

std::vector<BatchInteger> solve_integer(const Batches& batches, const Integers& values) {
  if (const auto line = solve_affine(batches, values)) return {factor_of(line->per_sample, line->fixed)};
  const auto &b = batches, &v = values;
  // Divided differences of the values times two.
  const auto rise = 2 * ((v[2] - v[0]) * (b[1] - b[0]) - (v[1] - v[0]) * (b[2] - b[0]));
  const auto run = (b[2] - b[0]) * (b[1] - b[0]) * (b[2] - b[1]);
  if (rise == 0 || rise % run != 0) return {};
  const auto square = rise / run;
  const auto line = 2 * (v[1] - v[0]) - square * (b[1] * b[1] - b[0] * b[0]);
  if (line % (b[1] - b[0]) != 0) return {};
  const auto linear = line / (b[1] - b[0]);
  const auto fixed = 2 * v[0] - square * b[0] * b[0] - linear * b[0];
  const bool halves = square % 2 != 0 || linear % 2 != 0 || fixed % 2 != 0;
  auto factors = halves ? factorise(square, linear, fixed) : factorise(square / 2, linear / 2, fixed / 2);
  if (factors.empty()) return {};
  if (halves) factors.back().factor = 0.5;
  for (std::size_t i = 0; i < 3; ++i) {
    if (ir::integer_at(factors, batches[i]) != values[i]) return {};
  }
  return factors;
}

bool agrees(ir::BatchFactors number, std::int64_t batch, double value) {
  const double expected = ir::number_at(number, batch);
  if (expected == value) return true;
  const auto form = number.back().form;
  const bool is_exact = form == NumberForm::kInteger || form == NumberForm::kSingleQuotient;
  return !is_exact && std::abs(expected - value) <= kFewUlps * std::abs(expected);
}

std::vector<BatchInteger> solve_number(const Batches& batches, const Numbers& values) {
  const auto is_usable = [](double x) { return std::isfinite(x) && x != 0; };
  if (auto number = solve_whole(batches, values); !number.empty()) return number;
  if (!std::all_of(values.begin(), values.end(), is_usable)) return {};
  const auto is_single = [](double x) { return static_cast<double>(static_cast<float>(x)) == x; };
  const bool all_single = std::all_of(values.begin(), values.end(), is_single);
  for (const auto factors : {std::size_t{1}, std::size_t{2}}) {
    if (auto number = solve_natural_quotient(batches, values, NumberForm::kQuotient, factors); !number.empty())
      return number;
    for (const auto form : {NumberForm::kQuotient, NumberForm::kMultiple}) {
      if (auto number = solve_scaled(batches, values, form, factors); !number.empty()) return number;
    }
    if (!all_single) continue;
    if (auto number = solve_natural_quotient(batches, values, NumberForm::kSingleQuotient, factors); !number.empty())
      return number;
  }
  return {};
}

}  // namespace autopar::trace
