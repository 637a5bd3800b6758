#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include <autopar/schedule/chunks.hpp>
#include <autopar/schedule/concepts.hpp>
#include <autopar/schedule/pipeline.hpp>
#include <autopar/schedule/schedule.hpp>

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
    if (channel.to != kSink && dice.chance(45)) {
      const ChannelKind whole[] = {ChannelKind::kReplicated, ChannelKind::kPartialSum, ChannelKind::kTotal};
      channel.kind = whole[channel.from == kSource ? 0 : dice.below(3)];
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
    for (int t = 0; t < pipeline.stages[s].tensor(); ++t) {
      auto ranks = pipeline.stages[s].replica_group(t);
      std::sort(ranks.begin(), ranks.end());
      if (ranks.size() > 1) pipeline.groups.push_back({ranks, StageId::of(s), dice.below(4)});
    }
  }
  const int stages = static_cast<int>(pipeline.stages.size());
  if (stages < 2 || !dice.chance(40)) return;
  const int a = dice.below(stages), b = (a + dice.between(1, stages - 1)) % stages;
  const Mesh& one = pipeline.stages[static_cast<std::size_t>(a)];
  const Mesh& other = pipeline.stages[static_cast<std::size_t>(b)];
  if (one.tensor() > 1 || other.tensor() > 1) return;
  auto ranks = one.ranks();
  const auto& others = other.ranks();
  ranks.insert(ranks.end(), others.begin(), others.end());
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  if (ranks.size() < 2) return;
  const auto place = pipeline.groups.begin() + dice.below(static_cast<int>(pipeline.groups.size()) + 1);
  pipeline.groups.insert(place, {ranks, StageId::none(), dice.between(1, 2)});
}

inline void add_random_layout(Case& out, Dice& dice, int max_microbatches) {
  const int largest = dice.chance(15) ? 1 : dice.between(1, 9);
  for (int r = 0; r < out.pipeline.ranks; ++r) {
    out.layout.local.push_back(dice.chance(20) ? 0 : dice.between(0, largest));
  }
  out.layout.microbatches = dice.between(1, max_microbatches);
}

/// Some of the meshes with tensor shards.
inline std::vector<Mesh> random_meshes(const std::vector<std::vector<Rank>>& stages, std::uint32_t seed) {
  Dice dice(seed + 555);
  std::vector<Mesh> meshes;
  for (const auto& ranks : stages) {
    const int tensor = dice.chance(60) ? 1 : dice.between(1, static_cast<int>(ranks.size()));
    meshes.emplace_back(ranks, ranks.size() % static_cast<std::size_t>(tensor) == 0 ? tensor : 1);
  }
  return meshes;
}

/// Ranks in any order, unequal replicas, tensor shards, idle ranks, skip channels of all kinds, ties, ragged and empty
/// local batches, more micro-batches than samples.
inline Case random_case(std::uint32_t seed, int max_ranks, int max_microbatches) {
  Dice dice(seed);
  Case out;
  Pipeline& pipeline = out.pipeline;
  pipeline.ranks = dice.between(1, max_ranks);
  std::vector<Rank> free;
  for (int r = 0; r < pipeline.ranks; ++r) free.insert(free.begin() + dice.below(r + 1), Rank(r));
  const int stages = dice.between(1, pipeline.ranks);
  std::vector<std::vector<Rank>> ranks(static_cast<std::size_t>(stages));
  for (auto& stage : ranks) {
    stage.push_back(free.back());
    free.pop_back();
  }
  while (!free.empty()) {
    if (dice.chance(80)) ranks[static_cast<std::size_t>(dice.below(stages))].push_back(free.back());
    free.pop_back();
  }
  pipeline.stages = random_meshes(ranks, seed);
  add_random_channels(pipeline, dice);
  add_random_groups(pipeline, dice);
  add_random_layout(out, dice, max_microbatches);
  return out;
}

/// The same with several stages on a rank, in any placement, reductions in any order.
inline Case random_chunked_case(std::uint32_t seed, int max_ranks, int max_microbatches) {
  Dice dice(seed);
  Case out;
  Pipeline& pipeline = out.pipeline;
  pipeline.ranks = dice.between(1, max_ranks);
  std::vector<std::vector<Rank>> stages(static_cast<std::size_t>(dice.between(1, 2 * pipeline.ranks + 1)));
  const int most = dice.between(1, pipeline.ranks);
  for (auto& stage : stages) {
    std::vector<Rank> ranks;
    for (int r = 0; r < pipeline.ranks; ++r) ranks.insert(ranks.begin() + dice.below(r + 1), Rank(r));
    stage.assign(ranks.begin(), ranks.begin() + dice.between(1, most));
  }
  pipeline.stages = random_meshes(stages, seed);
  add_random_channels(pipeline, dice);
  add_random_groups(pipeline, dice);
  for (std::size_t g = pipeline.groups.size(); g > 1; --g) {
    std::swap(pipeline.groups[g - 1], pipeline.groups[static_cast<std::size_t>(dice.below(static_cast<int>(g)))]);
  }
  add_random_layout(out, dice, max_microbatches);
  return out;
}

/// The same with stages where a schedule wants them; the others have one stage a position.
inline Case random_placed_case(std::uint32_t seed, ScheduleKind kind, int max_ranks, int max_microbatches) {
  Dice dice(seed);
  Case out;
  Pipeline& pipeline = out.pipeline;
  pipeline.ranks = dice.between(1, max_ranks);
  std::vector<std::vector<Rank>> positions(static_cast<std::size_t>(dice.between(1, pipeline.ranks)));
  std::vector<Rank> free;
  for (int r = 0; r < pipeline.ranks; ++r) free.insert(free.begin() + dice.below(r + 1), Rank(r));
  for (auto& position : positions) {
    position.push_back(free.back());
    free.pop_back();
  }
  for (const Rank rank : free) {
    if (!dice.chance(80)) continue;
    positions[static_cast<std::size_t>(dice.below(static_cast<int>(positions.size())))].push_back(rank);
  }
  const int chunks = kind == ScheduleKind::kInterleaved ? dice.between(1, 3) : 1;
  pipeline.stages = stages_for(kind, random_meshes(positions, seed), chunks);
  add_random_channels(pipeline, dice);
  add_random_groups(pipeline, dice);
  std::reverse(pipeline.groups.begin(), pipeline.groups.end());
  add_random_layout(out, dice, max_microbatches);
  return out;
}

/// The same pipeline with what its groups hold in shares, each as it likes, gathered by backwards in any order, some of
/// it several times.
inline Case in_shares(Case out, std::uint32_t seed) {
  Dice dice(seed + 77);
  Pipeline& pipeline = out.pipeline;
  for (ReduceGroup& group : pipeline.groups) {
    const bool replicas_only = group.stage.valid() && pipeline.stages[group.stage.index()].tensor() == 1;
    group.zero = dice.below(replicas_only ? 4 : 2);
  }
  if (dice.chance(50)) return out;
  for (std::size_t s = 0; s < pipeline.stages.size(); ++s) {
    auto& order = pipeline.backward_gathers.emplace_back();
    for (std::size_t g = 0; g < pipeline.groups.size(); ++g) {
      if (pipeline.groups[g].stage != StageId::of(s) || !gathers_in_computes(pipeline.groups[g])) continue;
      for (int times = dice.between(1, 3); times > 0; --times)
        order.insert(order.begin() + dice.below(static_cast<int>(order.size()) + 1), static_cast<int>(g));
    }
  }
  return out;
}

/// Orders drawn at random among those that can run, backwards whole or in two parts.
struct RandomOrders {
  using policy_category = schedule_policy_tag;
  std::uint32_t seed = 0;

  [[nodiscard]] std::vector<std::vector<ComputeAction>> rank_orders(const Pipeline& pipeline, int microbatches) const {
    Dice dice(seed);
    std::vector<std::vector<ComputeAction>> orders(static_cast<std::size_t>(pipeline.ranks));
    const int stages = static_cast<int>(pipeline.stages.size());
    const auto run = [&](int stage, ComputeAction compute) {
      compute.stage = StageId(stage);
      for (const Rank rank : pipeline.stages[compute.stage.index()].ranks()) orders[rank.index()].push_back(compute);
    };
    std::vector<int> at(static_cast<std::size_t>(microbatches), 0);  // stages forward, then stages backward
    std::vector<std::pair<int, int>> weights;                        // stage, micro-batch
    std::vector<int> open(at.size());
    for (int m = 0; m < microbatches; ++m) open[static_cast<std::size_t>(m)] = m;
    while (!open.empty() || !weights.empty()) {
      if (!weights.empty() && (open.empty() || dice.chance(30))) {
        const auto w = weights.begin() + dice.below(static_cast<int>(weights.size()));
        run(w->first, {ActionKind::kBackwardWeight, w->second});
        weights.erase(w);
        continue;
      }
      const auto next = open.begin() + dice.below(static_cast<int>(open.size()));
      const int m = *next, step = at[static_cast<std::size_t>(m)]++;
      const int stage = step < stages ? step : 2 * stages - 1 - step;
      const bool split = step >= stages && dice.chance(50);
      const auto backward = split ? ActionKind::kBackwardInput : ActionKind::kBackward;
      run(stage, {step < stages ? ActionKind::kForward : backward, m});
      if (split) weights.emplace_back(stage, m);
      if (step + 1 == 2 * stages) open.erase(next);
    }
    return orders;
  }
};

}  // namespace autopar::testing
