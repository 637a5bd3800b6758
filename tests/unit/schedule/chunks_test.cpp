#include <autopar/schedule/chunks.hpp>

#include <catch_shim.hpp>

#include "equal_times.hpp"

using namespace autopar;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("chunk_layout: finds looped and V-shaped stages", "[schedule]") {
  for (const auto& replicas : {std::vector<int>{1}, {1, 1}, {2, 1, 3}, {1, 4, 2, 2}}) {
    const Positions positions = testing::positions_of(replicas);
    const auto p = positions.size();
    for (int v = 1; v <= 3; ++v) {
      const auto layout = chunk_layout(testing::in_a_row(stages_in(StageLayout::kLooped, positions, v)));
      CHECK(Positions(layout.positions.begin(), layout.positions.end()) == positions);
      CHECK(layout.chunks() == v);
      CHECK(lies_in(StageLayout::kLooped, layout));
      CHECK(lies_in(StageLayout::kVShaped, layout) == (v == 2 && p == 1));
      for (std::size_t s = 0; s < layout.at.size(); ++s) CHECK(layout.at[s] == s % p);
    }
    const auto layout = chunk_layout(testing::in_a_row(stages_in(StageLayout::kVShaped, positions)));
    CHECK(Positions(layout.positions.begin(), layout.positions.end()) == positions);
    CHECK(lies_in(StageLayout::kVShaped, layout));
    CHECK(lies_in(StageLayout::kLooped, layout) == (p == 1));
    for (std::size_t s = 0; s < layout.at.size(); ++s) CHECK(layout.at[s] == std::min(s, 2 * p - 1 - s));
  }
}

TEST_CASE("chunk_layout: chunks of a position have the same ranks", "[schedule]") {
  CHECK(chunk_layout(testing::in_a_row({{Rank(1), Rank(0)}, {Rank(0), Rank(1)}})).size() == 1);
  CHECK_THROWS_WITH(chunk_layout(testing::in_a_row({{Rank(1), Rank(0)}, {Rank(2)}, {Rank(1), Rank(3)}})),
                    ContainsSubstring("stages 0 and 2 share rank 1"));
}
