#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "cuda_on_cpu/cuda_on_cpu.hpp"

namespace kernels_test {

using Numbers = std::vector<double>;

/// Numbers about 1 that every type has.
inline Numbers drawn(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> distribution;
  Numbers made(count);
  for (auto& number : made)
    number = cuda_on_cpu::number_of(cuda_on_cpu::rounded<cuda_on_cpu::Bf16>(distribution(generator)));
  return made;
}

/// The largest error, relative to numbers beyond 1. Infinite where one is NaN and the other is not, or other sizes.
inline double worst_error(const Numbers& made, const Numbers& exact) {
  double worst = made.size() == exact.size() ? 0 : std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < std::min(made.size(), exact.size()); ++i) {
    if (made[i] == exact[i] || (std::isnan(made[i]) && std::isnan(exact[i]))) continue;
    const double error = std::fabs(made[i] - exact[i]) / std::max(1.0, std::fabs(exact[i]));
    worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
  }
  return worst;
}

/// Calls `work.operator()<T>()` for each type of data.
template <class Work>
void for_each_type(const Work& work) {
  work.template operator()<float>();
  work.template operator()<cuda_on_cpu::Bf16>();
  work.template operator()<cuda_on_cpu::F16>();
}

inline unsigned blocks_for(std::size_t elements, std::size_t of_block) {
  return static_cast<unsigned>((elements + of_block - 1) / of_block);
}
/// Of a kernel that calls `sum_blocks`.
inline autopar::kernels::LaunchShape over_columns(std::size_t columns) { return {blocks_for(columns, 32), 1, 32, 8}; }

}  // namespace kernels_test
