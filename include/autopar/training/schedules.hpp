#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

/// Learning rates as factors in [0, 1] of the highest one. `step` counts from 0; it is all the state that they have.
namespace autopar::training {

/// Rises within `warmup` steps: 1/warmup at step 0, 1 at step warmup - 1 and later.
inline double warmed_up(std::int64_t step, std::int64_t warmup) {
  return step + 1 >= warmup ? 1.0 : static_cast<double>(step + 1) / static_cast<double>(warmup);
}

/// How much of the way from the end of the warm-up to the last step lies behind: 0 up to step warmup, 1 at `steps`.
inline double way_done(std::int64_t step, std::int64_t steps, std::int64_t warmup) {
  if (steps <= warmup) return 0;
  return std::clamp(static_cast<double>(step - warmup) / static_cast<double>(steps - warmup), 0.0, 1.0);
}

inline double linear_decay(std::int64_t step, std::int64_t steps, std::int64_t warmup, double lowest = 0) {
  return warmed_up(step, warmup) * (1 - (1 - lowest) * way_done(step, steps, warmup));
}

/// @source Loshchilov & Hutter, "SGDR", ICLR 2017, equation 5, without restarts
inline double cosine_decay(std::int64_t step, std::int64_t steps, std::int64_t warmup, double lowest = 0) {
  const double wave = 0.5 * (1 + std::cos(std::numbers::pi * way_done(step, steps, warmup)));
  return warmed_up(step, warmup) * (lowest + (1 - lowest) * wave);
}

/// The root of the steps that are left, which drops at once from 1 to that at the warm-up's end.
/// @source PolyWarmUpScheduler of NVIDIA's BERT scripts, degree 0.5
inline double root_decay(std::int64_t step, std::int64_t steps, std::int64_t warmup) {
  if (step < warmup) return warmed_up(step, warmup);
  return std::sqrt(1 - std::min(1.0, static_cast<double>(step) / static_cast<double>(steps)));
}

/// `factor` times less behind each of these steps.
inline double step_decay(std::int64_t step, const std::vector<std::int64_t>& at, std::int64_t warmup,
                         double factor = 0.1) {
  const auto passed = std::count_if(at.begin(), at.end(), [&](std::int64_t each) { return step >= each; });
  return warmed_up(step, warmup) * std::pow(factor, static_cast<double>(passed));
}

}  // namespace autopar::training
