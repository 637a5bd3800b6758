#include "torch/checkpoint/pieces.hpp"

#include <algorithm>
#include <cstdint>
#include <map>

namespace autopar::checkpoint {

namespace {

/// The ranks that can write some elements.
struct Source {
  parameters::ShardSlices slices;
  std::vector<Rank> ranks;
};

std::vector<Source> sources_of(const CheckpointItem& item, CheckpointFormat format) {
  if (format == CheckpointFormat::kSingleFile) return {{whole_of(item.entry), {Rank(0)}}};
  const auto& holders = item.holders();
  // Of an optimizer's state only the first holder surely has a number, see `existing`.
  if (item.shards().empty() && item.optimizer != nullptr) return {{whole_of(item.entry), {holders.front()}}};
  if (item.shards().empty()) return {{whole_of(item.entry), holders}};
  std::vector<Source> sources;
  for (std::size_t h = 0; h < holders.size(); ++h) {
    const auto& slices = item.shards()[h];
    if (slices.empty()) continue;
    const auto same = std::ranges::find(sources, slices, &Source::slices);
    if (same == sources.end())
      sources.push_back({slices, {holders[h]}});
    else
      same->ranks.push_back(holders[h]);
  }
  // A tensor without elements has a place in a file, too.
  if (sources.empty()) sources.push_back({whole_of(item.entry), {holders.front()}});
  return sources;
}

}  // namespace

std::vector<Piece> pieces_of(const std::vector<CheckpointItem>& items, CheckpointFormat format) {
  std::vector<Piece> pieces;
  std::map<Rank, std::int64_t> written;
  for (std::size_t i = 0; i < items.size(); ++i) {
    for (auto& [slices, ranks] : sources_of(items[i], format)) {
      const auto writer = *std::ranges::min_element(ranks, {}, [&](Rank rank) { return written[rank]; });
      written[writer] += slices.size() * size_of(items[i].entry.dtype).value();
      pieces.push_back({i, writer, slices});
    }
  }
  return pieces;
}

}  // namespace autopar::checkpoint
