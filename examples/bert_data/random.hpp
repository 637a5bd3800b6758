#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace bert_data {

/// Draws that are the same with every standard library, whose distributions and shuffle differ.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  /// [0, 1)
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  /// [0, n). n > 0; for n < 2^32 no number is more likely than another by 2^-32.
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(engine_() % n); }
  bool with_probability(double p) { return uniform() < p; }

  template <class T>
  void shuffle(std::vector<T>& items) {
    for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace bert_data
