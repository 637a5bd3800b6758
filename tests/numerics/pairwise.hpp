#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace numerics {

/// Whether level a of factor f and level b of factor g can occur in one row; asked with f < g.
using PossiblePair = std::function<bool(std::size_t f, int a, std::size_t g, int b)>;

namespace detail {

/// Rows that cover all pairs, chosen one by one.
/// @source Cohen et al., "The AETG system", IEEE TSE 23(7), 1997
class PairwiseSearch {
 public:
  PairwiseSearch(const std::vector<int>& levels, unsigned seed, const PossiblePair& possible)
      : levels_(levels), possible_(possible), random_(seed), offset_(levels.size() + 1, 0) {
    for (std::size_t f = 0; f < levels.size(); ++f) offset_[f + 1] = offset_[f] + static_cast<std::size_t>(levels[f]);
    open_.assign(offset_.back() * offset_.back(), 0);
    for_each_pair([&](std::size_t f, int a, std::size_t g, int b) {
      if (!possible_(f, a, g, b)) return;
      open(f, a, g, b) = open(g, b, f, a) = 1;
      ++left_;
    });
  }

  [[nodiscard]] std::vector<std::vector<int>> rows() {
    std::vector<std::vector<int>> rows;
    while (left_ > 0) rows.push_back(cover(next_row()));
    return rows;
  }

 private:
  [[nodiscard]] char& open(std::size_t f, int a, std::size_t g, int b) {
    return open_[(offset_[f] + static_cast<std::size_t>(a)) * offset_.back() + offset_[g] +
                 static_cast<std::size_t>(b)];
  }

  template <class Visit>
  void for_each_pair(Visit visit) const {
    for (std::size_t f = 0; f < levels_.size(); ++f) {
      for (std::size_t g = f + 1; g < levels_.size(); ++g) {
        for (int a = 0; a < levels_[f]; ++a) {
          for (int b = 0; b < levels_[g]; ++b) visit(f, a, g, b);
        }
      }
    }
  }

  /// Begins with a pair that is open, so that every row makes progress, and goes on with what opens most.
  [[nodiscard]] std::vector<int> next_row() {
    std::vector<int> row(levels_.size(), -1);
    for_each_pair([&](std::size_t f, int a, std::size_t g, int b) {
      if (std::all_of(row.begin(), row.end(), [](int level) { return level < 0; }) && open(f, a, g, b) != 0) {
        row[f] = a;
        row[g] = b;
      }
    });
    std::vector<std::size_t> order(levels_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random_);
    for (const auto factor : order) {
      if (row[factor] < 0) row[factor] = best_level(row, factor);
    }
    return row;
  }

  [[nodiscard]] int best_level(const std::vector<int>& row, std::size_t f) {
    int most = -1;
    std::vector<int> best;
    for (int level = 0; level < levels_[f]; ++level) {
      if (!fits(row, f, level)) continue;
      int gain = 0;
      for (std::size_t g = 0; g < row.size(); ++g) gain += g != f && row[g] >= 0 ? open(f, level, g, row[g]) : 0;
      if (gain > most) best.clear();
      most = std::max(most, gain);
      if (gain == most) best.push_back(level);
    }
    if (best.empty())
      throw std::logic_error("no level of factor " + std::to_string(f) + " fits what a row has already");
    return best[random_() % best.size()];
  }

  [[nodiscard]] bool fits(const std::vector<int>& row, std::size_t f, int level) const {
    for (std::size_t g = 0; g < row.size(); ++g) {
      if (g == f || row[g] < 0) continue;
      if (!(f < g ? possible_(f, level, g, row[g]) : possible_(g, row[g], f, level))) return false;
    }
    return true;
  }

  [[nodiscard]] std::vector<int> cover(std::vector<int> row) {
    for (std::size_t f = 0; f < row.size(); ++f) {
      for (std::size_t g = f + 1; g < row.size(); ++g) {
        if (open(f, row[f], g, row[g]) == 0) continue;
        open(f, row[f], g, row[g]) = open(g, row[g], f, row[f]) = 0;
        --left_;
      }
    }
    return row;
  }

  const std::vector<int>& levels_;
  const PossiblePair& possible_;
  std::mt19937 random_;
  std::vector<std::size_t> offset_;  // of a factor's levels among all
  std::vector<char> open_;           // by two levels: in no row yet
  std::size_t left_ = 0;
};

}  // namespace detail

/// Rows of levels (one a factor) such that every possible pair of levels of two factors occurs in a row, and no other.
/// The same rows for the same seed. @pre what is possible pair by pair can be completed to a row
[[nodiscard]] inline std::vector<std::vector<int>> pairwise_rows(
    const std::vector<int>& levels, unsigned seed,
    const PossiblePair& possible = [](std::size_t, int, std::size_t, int) { return true; }) {
  return detail::PairwiseSearch(levels, seed, possible).rows();
}

}  // namespace numerics
