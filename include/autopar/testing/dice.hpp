#pragma once

#include <cstdint>
#include <random>

namespace autopar::testing {

/// A seeded generator with the same numbers for every standard library, unlike std::uniform_int_distribution.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed * 0x9E3779B97F4A7C15ull + 1) { engine_.discard(4); }
  /// Uniform in [low, high].
  int operator()(int low, int high) {
    return low + static_cast<int>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  /// Uniform in [0, bound).
  int below(int bound) { return (*this)(0, bound - 1); }
  bool chance(int percent) { return (*this)(1, 100) <= percent; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace autopar::testing
