#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <autopar/core/ids.hpp>

namespace autopar::parameters {

/// What is assembled for one parameter: its value, gradient and state together.
struct WholeItem {
  std::int64_t bytes = 0;
  std::vector<Rank> holders;  ///< one of these assembles it; at least one
};

/// Which rank assembles which parameters, and when. Ranks work side by side; a round's items of one rank are there
/// together.
struct WholeRounds {
  std::vector<Rank> runners;                     ///< by item
  std::vector<std::vector<std::size_t>> rounds;  ///< items, ascending within a round and over the rounds
};

/// Each item goes to its holder with the fewest bytes so far, so that work is spread by size. In no round a rank has
/// more bytes than the largest item. Pure: the same on every rank.
[[nodiscard]] WholeRounds rounds_of(const std::vector<WholeItem>& items, int ranks);

}  // namespace autopar::parameters
