#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <random>
#include <vector>

namespace numerics {

/// Rows of levels (one a factor) such that every two levels of every two factors occur together in a row. Greedy, the
/// same rows for the same seed. @source Cohen et al., "The AETG system", IEEE TSE 23(7), 1997
inline std::vector<std::vector<int>> pairwise_rows(const std::vector<int>& levels, unsigned seed) {
  const std::size_t factors = levels.size();
  const auto offset = [&] {
    std::vector<std::size_t> out(factors + 1, 0);
    for (std::size_t f = 0; f < factors; ++f) out[f + 1] = out[f] + static_cast<std::size_t>(levels[f]);
    return out;
  }();
  const auto at = [&](std::size_t f, int level) { return offset[f] + static_cast<std::size_t>(level); };
  const std::size_t total = offset.back();
  std::vector<char> covered(total * total, 0);
  std::size_t left = 0;
  for (std::size_t f = 0; f < factors; ++f) {
    for (std::size_t g = f + 1; g < factors; ++g) left += static_cast<std::size_t>(levels[f]) * static_cast<std::size_t>(levels[g]);
  }
  std::mt19937 random(seed);
  std::vector<std::vector<int>> rows;
  const auto gain = [&](const std::vector<int>& row, std::size_t f, int level) {
    std::size_t fresh = 0;
    for (std::size_t g = 0; g < factors; ++g) {
      if (g != f && row[g] >= 0 && covered[at(f, level) * total + at(g, row[g])] == 0) ++fresh;
    }
    return fresh;
  };
  struct OpenPair {
    std::size_t f;
    int a;
    std::size_t g;
    int b;
  };
  const auto open_pair = [&]() -> OpenPair {
    for (std::size_t f = 0; f < factors; ++f) {
      for (std::size_t g = f + 1; g < factors; ++g) {
        for (int a = 0; a < levels[f]; ++a) {
          for (int b = 0; b < levels[g]; ++b) {
            if (covered[at(f, a) * total + at(g, b)] == 0) return {f, a, g, b};
          }
        }
      }
    }
    return {};
  };
  while (left > 0) {
    std::vector<int> row(factors, -1);
    const auto [f, a, g, b] = open_pair();  // every row makes progress
    row[f] = a;
    row[g] = b;
    std::vector<std::size_t> order(factors);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    for (const auto factor : order) {
      if (row[factor] >= 0) continue;
      std::size_t best_gain = 0;
      std::vector<int> best;
      for (int level = 0; level < levels[factor]; ++level) {
        const auto fresh = gain(row, factor, level);
        if (fresh > best_gain) best.clear();
        best_gain = std::max(best_gain, fresh);
        if (fresh == best_gain) best.push_back(level);
      }
      row[factor] = best[random() % best.size()];
    }
    for (std::size_t i = 0; i < factors; ++i) {
      for (std::size_t j = 0; j < factors; ++j) {
        if (i == j) continue;
        auto& mark = covered[at(i, row[i]) * total + at(j, row[j])];
        if (mark == 0 && i < j) --left;
        mark = 1;
      }
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace numerics
