#include "torch/parameters/whole_rounds.hpp"

#include <algorithm>
#include <map>
#include <random>

#include <catch_shim.hpp>

namespace whole_rounds_test {

using namespace autopar;

TEST_CASE("rounds_of: parameters are spread by size over holders") {
  const std::vector<Rank> both{Rank(0), Rank(1)};
  const auto rounds = parameters::rounds_of({{100, both}, {60, both}, {30, both}, {50, both}, {0, {Rank(1)}}}, 2);
  CHECK((rounds.runners == std::vector{Rank(0), Rank(1), Rank(1), Rank(1), Rank(1)}));
  CHECK((rounds.rounds == std::vector<std::vector<std::size_t>>{{0, 1, 2}, {3, 4}}));
}

TEST_CASE("rounds_of: bounded by the largest, each once, in order") {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    const int ranks = 1 + static_cast<int>(random() % 5);
    std::vector<parameters::WholeItem> items(random() % 20);
    std::int64_t largest = 0;
    for (auto& item : items) {
      item.bytes = static_cast<std::int64_t>(random() % 1000);
      largest = std::max(largest, item.bytes);
      for (int r = 0; r < ranks; ++r) {
        if (random() % 2 == 0) item.holders.push_back(Rank(r));
      }
      if (item.holders.empty()) item.holders.push_back(Rank(static_cast<int>(random() % ranks)));
    }
    const auto made = parameters::rounds_of(items, ranks);
    std::vector<std::size_t> seen;
    for (const auto& each : made.rounds) {
      std::map<Rank, std::int64_t> bytes;
      for (const auto i : each) {
        CHECK(std::ranges::count(items[i].holders, made.runners[i]) == 1);
        bytes[made.runners[i]] += items[i].bytes;
        seen.push_back(i);
      }
      for (const auto& [rank, sum] : bytes) CHECK(sum <= largest);
    }
    CHECK(seen.size() == items.size());
    CHECK(std::ranges::is_sorted(seen));
    CHECK(std::ranges::adjacent_find(seen) == seen.end());
  }
}

}  // namespace whole_rounds_test
