#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <autopar/core/ids.hpp>

namespace autopar::parameters {

/// What is assembled for one parameter: its value, gradient and state together.
struct WholeItem {
  std::int64_t bytes = 0;
  std::vector<Rank> holders;  ///< one of these assembles it; not empty
};

/// Which rank assembles which parameters, and when. Ranks work concurrently. A rank assembles all its items of a round
/// together.
struct WholeRounds {
  std::vector<Rank> runners;                     ///< by item
  std::vector<std::vector<std::size_t>> rounds;  ///< items, ascending within a round and across rounds
};

/// Assigns each item to its holder with the fewest bytes so far, which spreads the work by size. In a round, no rank
/// has more bytes than the largest item. Pure: the same on every rank.
[[nodiscard]] WholeRounds rounds_of(const std::vector<WholeItem>& items, int ranks);

}  // namespace autopar::parameters
