#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

namespace autopar::training {

/// Which values of a metric are better.
enum class Better : std::uint8_t {
  kHigher,  ///< accuracies
  kLower,   ///< losses
};

/// Whether `value` is better than `best` by more than `least`. The first is better than none. NaN and
/// infinite values are never better.
/// @param least  not negative
[[nodiscard]] inline bool is_better(double value, const std::optional<double>& best, Better better, double least = 0) {
  if (!std::isfinite(value)) return false;
  if (!best) return true;
  return better == Better::kHigher ? value > *best + least : value < *best - least;
}

}  // namespace autopar::training
