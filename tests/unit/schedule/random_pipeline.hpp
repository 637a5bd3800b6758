#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include <autopar/schedule/pipeline.hpp>

namespace autopar::testing {

/// Seeded choices that are the same with every standard library.
class Dice {
 public:
  explicit Dice(std::uint32_t seed) : engine_(seed) {}
  /// 0 … n-1
  int below(int n) { return static_cast<int>(engine_() % static_cast<std::uint32_t>(n)); }
  int between(int low, int high) { return low + below(high - low + 1); }
  bool chance(int percent) { return below(100) < percent; }

 private:
  std::mt19937 engine_;
};

struct Case {
  Pipeline pipeline;
  BatchLayout layout;
};

inline void add_random_channels(Pipeline& pipeline, Dice& dice) {
  const int stages = static_cast<int>(pipeline.stages.size());
  const auto stage_at = [&](int position) {
    return position < 0 ? kSource : position == stages ? kSink : StageId(position);
  };
  const auto add = [&](int from, int to) {
    Channel channel{stage_at(from), stage_at(to), ChannelKind::kBatched, dice.chance(75)};
    if (channel.to != kSink && dice.chance(35)) {
      channel.kind = channel.from != kSource && dice.chance(50) ? ChannelKind::kPartialSum : ChannelKind::kReplicated;
    }
    pipeline.channels.push_back(channel);
  };
  for (int s = -1; s < stages; ++s) {
    if (dice.chance(90)) add(s, s + 1);
  }
  for (int extra = dice.below(4); extra > 0; --extra) {
    const int from = dice.between(-1, stages - 1);
    add(from, dice.between(from + 1, stages));
  }
}

inline void add_random_groups(Pipeline& pipeline, Dice& dice) {
  for (std::size_t s = 0; s < pipeline.stages.size(); ++s) {
    auto ranks = pipeline.stages[s];
    std::sort(ranks.begin(), ranks.end());
    if (ranks.size() > 1) pipeline.groups.push_back({ranks, StageId::of(s), dice.below(4)});
  }
  const int stages = static_cast<int>(pipeline.stages.size());
  if (stages < 2 || !dice.chance(40)) return;
  const int a = dice.below(stages), b = (a + dice.between(1, stages - 1)) % stages;
  auto ranks = pipeline.stages[static_cast<std::size_t>(a)];
  const auto& others = pipeline.stages[static_cast<std::size_t>(b)];
  ranks.insert(ranks.end(), others.begin(), others.end());
  std::sort(ranks.begin(), ranks.end());
  const auto place = pipeline.groups.begin() + dice.below(static_cast<int>(pipeline.groups.size()) + 1);
  pipeline.groups.insert(place, {ranks, StageId::none(), dice.between(1, 2)});
}

/// Ranks in any order, unequal replicas, idle ranks, skip channels of all kinds, ties, ragged and empty local batches,
/// more micro-batches than samples.
inline Case random_case(std::uint32_t seed, int max_ranks, int max_microbatches) {
  Dice dice(seed);
  Case out;
  Pipeline& pipeline = out.pipeline;
  pipeline.ranks = dice.between(1, max_ranks);
  std::vector<Rank> free;
  for (int r = 0; r < pipeline.ranks; ++r) free.insert(free.begin() + dice.below(r + 1), Rank(r));
  const int stages = dice.between(1, pipeline.ranks);
  pipeline.stages.resize(static_cast<std::size_t>(stages));
  for (auto& stage : pipeline.stages) {
    stage.push_back(free.back());
    free.pop_back();
  }
  while (!free.empty()) {
    if (dice.chance(80)) pipeline.stages[static_cast<std::size_t>(dice.below(stages))].push_back(free.back());
    free.pop_back();
  }
  add_random_channels(pipeline, dice);
  add_random_groups(pipeline, dice);
  const int largest = dice.chance(15) ? 1 : dice.between(1, 9);
  for (int r = 0; r < pipeline.ranks; ++r) out.layout.local.push_back(dice.chance(20) ? 0 : dice.between(0, largest));
  out.layout.microbatches = dice.between(1, max_microbatches);
  return out;
}

}  // namespace autopar::testing
