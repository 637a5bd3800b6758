#include "pairwise.hpp"

#include <catch_shim.hpp>

#include <set>
#include <tuple>

namespace pairwise_test {

/// All pairs of levels in rows, and those that a predicate allows.
using Pairs = std::set<std::tuple<std::size_t, int, std::size_t, int>>;

Pairs pairs_in(const std::vector<std::vector<int>>& rows, const std::vector<int>& levels) {
  Pairs pairs;
  for (const auto& row : rows) {
    REQUIRE(row.size() == levels.size());
    for (std::size_t f = 0; f < levels.size(); ++f) {
      REQUIRE((row[f] >= 0 && row[f] < levels[f]));
      for (std::size_t g = f + 1; g < levels.size(); ++g) pairs.emplace(f, row[f], g, row[g]);
    }
  }
  return pairs;
}

Pairs pairs_of(const std::vector<int>& levels, const numerics::PossiblePair& possible) {
  Pairs pairs;
  for (std::size_t f = 0; f < levels.size(); ++f) {
    for (std::size_t g = f + 1; g < levels.size(); ++g) {
      for (int a = 0; a < levels[f]; ++a) {
        for (int b = 0; b < levels[g]; ++b) {
          if (possible(f, a, g, b)) pairs.emplace(f, a, g, b);
        }
      }
    }
  }
  return pairs;
}

const numerics::PossiblePair kAny = [](std::size_t, int, std::size_t, int) { return true; };

TEST_CASE("pairwise_rows: every pair occurs in few rows") {
  for (unsigned seed = 1; seed <= 5; ++seed) {
    const std::vector<int> levels = seed == 1 ? std::vector{1, 1} : std::vector{7, 5, 2, 3, 1, 4};
    const auto rows = numerics::pairwise_rows(levels, seed);
    CHECK(rows == numerics::pairwise_rows(levels, seed));
    CHECK(rows.size() <= 50);
    CHECK((pairs_in(rows, levels) == pairs_of(levels, kAny)));  // not shown: torch prints sets, but no tuples
  }
}

TEST_CASE("pairwise_rows: only impossible pairs are left out") {
  const std::vector<int> levels{7, 5, 2, 3, 1, 4};
  const numerics::PossiblePair possible = [](std::size_t f, int a, std::size_t g, int b) {
    if (f == 0 && g == 1) return a == 0 || b <= a;  // level 0 of factor 1 goes with everything
    return !(f == 1 && g == 3 && a > 2 && b == 2);
  };
  for (unsigned seed = 1; seed <= 5; ++seed) {
    const auto rows = numerics::pairwise_rows(levels, seed, possible);
    CHECK(rows.size() <= 50);
    CHECK((pairs_in(rows, levels) == pairs_of(levels, possible)));  // not shown: torch prints sets, but no tuples
  }
}

}  // namespace pairwise_test
