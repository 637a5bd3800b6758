#include "torch/parameters/whole_rounds.hpp"

#include <algorithm>

namespace autopar::parameters {

WholeRounds rounds_of(const std::vector<WholeItem>& items, int ranks) {
  WholeRounds out;
  std::int64_t limit = 0;
  for (const auto& item : items) limit = std::max(limit, item.bytes);
  std::vector<std::int64_t> in_all(static_cast<std::size_t>(ranks), 0), in_round = in_all;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto& item = items[i];
    const auto runner = *std::ranges::min_element(item.holders, {}, [&](Rank rank) { return in_all[rank.index()]; });
    out.runners.push_back(runner);
    in_all[runner.index()] += std::max<std::int64_t>(item.bytes, 1);  // so that ranks alternate for empty items, too
    if (out.rounds.empty() || in_round[runner.index()] + item.bytes > limit) {
      out.rounds.emplace_back();
      std::ranges::fill(in_round, 0);
    }
    in_round[runner.index()] += item.bytes;
    out.rounds.back().push_back(i);
  }
  return out;
}

}  // namespace autopar::parameters
