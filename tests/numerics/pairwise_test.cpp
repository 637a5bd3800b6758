#include "pairwise.hpp"

#include <catch_shim.hpp>

#include <set>
#include <tuple>

TEST_CASE("every pair of levels occurs, in far fewer rows than the product") {
  for (unsigned seed = 1; seed <= 5; ++seed) {
    const std::vector<int> levels = seed == 1 ? std::vector{1, 1} : std::vector{7, 5, 2, 3, 1, 4};
    const auto rows = numerics::pairwise_rows(levels, seed);
    CHECK(rows == numerics::pairwise_rows(levels, seed));
    CHECK(rows.size() <= 50);
    std::set<std::tuple<std::size_t, int, std::size_t, int>> pairs;
    for (const auto& row : rows) {
      for (std::size_t f = 0; f < levels.size(); ++f) {
        REQUIRE((row[f] >= 0 && row[f] < levels[f]));
        for (std::size_t g = f + 1; g < levels.size(); ++g) pairs.emplace(f, row[f], g, row[g]);
      }
    }
    std::size_t expected = 0;
    for (std::size_t f = 0; f < levels.size(); ++f) {
      for (std::size_t g = f + 1; g < levels.size(); ++g) expected += static_cast<std::size_t>(levels[f] * levels[g]);
    }
    CHECK(pairs.size() == expected);
  }
}
