#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/schedule/chunks.hpp>
#include <autopar/schedule/pipeline.hpp>
#include <autopar/testing/dice.hpp>

namespace autopar::testing {

/// A pipeline and the samples of its ranks in one call.
struct PipelineCase {
  Pipeline pipeline;
  BatchLayout layout;
};

/// A linear pipeline: each stage reads the previous one's results, the first reads inputs.
inline Pipeline in_a_row(std::vector<Mesh> stages) {
  Pipeline out{.ranks = 0, .stages = std::move(stages), .channels = {}, .groups = {}};
  for (int s = 0; s < static_cast<int>(out.stages.size()); ++s) {
    out.channels.push_back({s == 0 ? kSource : StageId(s - 1), StageId(s), ChannelKind::kBatched, s > 0});
    for (const Rank rank : out.stages[static_cast<std::size_t>(s)].ranks())
      out.ranks = std::max(out.ranks, rank.value() + 1);
  }
  return out;
}

/// Enough samples on every rank that no slice is empty.
inline BatchLayout even_layout(const Pipeline& pipeline, int microbatches) {
  return {std::vector<std::int64_t>(static_cast<std::size_t>(pipeline.ranks), microbatches), microbatches};
}

namespace detail {

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
    const int from = dice(-1, stages - 1);
    add(from, dice(from + 1, stages));
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
  const int a = dice.below(stages), b = (a + dice(1, stages - 1)) % stages;
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
  pipeline.groups.insert(place, {ranks, StageId::none(), dice(1, 2)});
}

inline void add_random_layout(PipelineCase& out, Dice& dice, int max_microbatches) {
  const int largest = dice.chance(15) ? 1 : dice(1, 9);
  for (int r = 0; r < out.pipeline.ranks; ++r) {
    out.layout.local.push_back(dice.chance(20) ? 0 : dice(0, largest));
  }
  out.layout.microbatches = dice(1, max_microbatches);
}

/// Makes meshes of the stages' ranks, some of them with tensor shards.
inline std::vector<Mesh> random_meshes(const std::vector<std::vector<Rank>>& stages, std::uint64_t seed) {
  Dice dice(seed + 555);
  std::vector<Mesh> meshes;
  for (const auto& ranks : stages) {
    int tensor = dice.chance(60) ? 1 : dice(1, static_cast<int>(ranks.size()));
    if (ranks.size() % static_cast<std::size_t>(tensor) != 0) tensor = 1;
    std::vector<Rank> in_order = ranks;
    for (auto shards = in_order.begin(); shards != in_order.end(); shards += tensor) std::sort(shards, shards + tensor);
    meshes.emplace_back(std::move(in_order), tensor);
  }
  return meshes;
}

}  // namespace detail

/// Random pipelines with ranks in any order, unequal replicas, tensor shards, idle ranks, skip channels of all kinds
/// and tied parameters. Local batches are ragged or empty, and there may be more micro-batches than samples.
inline PipelineCase random_case(std::uint64_t seed, int max_ranks, int max_microbatches) {
  Dice dice(seed);
  PipelineCase out;
  Pipeline& pipeline = out.pipeline;
  pipeline.ranks = dice(1, max_ranks);
  std::vector<Rank> free;
  for (int r = 0; r < pipeline.ranks; ++r) free.insert(free.begin() + dice.below(r + 1), Rank(r));
  const int stages = dice(1, pipeline.ranks);
  std::vector<std::vector<Rank>> ranks(static_cast<std::size_t>(stages));
  for (auto& stage : ranks) {
    stage.push_back(free.back());
    free.pop_back();
  }
  while (!free.empty()) {
    if (dice.chance(80)) ranks[static_cast<std::size_t>(dice.below(stages))].push_back(free.back());
    free.pop_back();
  }
  pipeline.stages = detail::random_meshes(ranks, seed);
  detail::add_random_channels(pipeline, dice);
  detail::add_random_groups(pipeline, dice);
  detail::add_random_layout(out, dice, max_microbatches);
  return out;
}

/// random_case with several stages on a rank, in any placement, and reductions in any order.
inline PipelineCase random_chunked_case(std::uint64_t seed, int max_ranks, int max_microbatches) {
  Dice dice(seed);
  PipelineCase out;
  Pipeline& pipeline = out.pipeline;
  pipeline.ranks = dice(1, max_ranks);
  std::vector<std::vector<Rank>> stages(static_cast<std::size_t>(dice(1, 2 * pipeline.ranks + 1)));
  const int most = dice(1, pipeline.ranks);
  for (auto& stage : stages) {
    std::vector<Rank> ranks;
    for (int r = 0; r < pipeline.ranks; ++r) ranks.insert(ranks.begin() + dice.below(r + 1), Rank(r));
    stage.assign(ranks.begin(), ranks.begin() + dice(1, most));
  }
  pipeline.stages = detail::random_meshes(stages, seed);
  detail::add_random_channels(pipeline, dice);
  detail::add_random_groups(pipeline, dice);
  for (std::size_t g = pipeline.groups.size(); g > 1; --g) {
    std::swap(pipeline.groups[g - 1], pipeline.groups[static_cast<std::size_t>(dice.below(static_cast<int>(g)))]);
  }
  detail::add_random_layout(out, dice, max_microbatches);
  return out;
}

/// random_case with stages in a schedule's layout: one at each position, or several.
inline PipelineCase random_placed_case(std::uint64_t seed, StageLayout layout, int max_ranks, int max_microbatches) {
  Dice dice(seed);
  PipelineCase out;
  Pipeline& pipeline = out.pipeline;
  pipeline.ranks = dice(1, max_ranks);
  std::vector<std::vector<Rank>> ranks(static_cast<std::size_t>(dice(1, pipeline.ranks)));
  std::vector<Rank> free;
  for (int r = 0; r < pipeline.ranks; ++r) free.insert(free.begin() + dice.below(r + 1), Rank(r));
  for (auto& position : ranks) {
    position.push_back(free.back());
    free.pop_back();
  }
  for (const Rank rank : free) {
    if (dice.chance(80)) ranks[static_cast<std::size_t>(dice.below(static_cast<int>(ranks.size())))].push_back(rank);
  }
  const Positions positions = detail::random_meshes(ranks, seed);
  const int chunks = layout == StageLayout::kLooped ? dice(1, 3) : 1;
  pipeline.stages = stages_in(layout, positions, chunks);
  detail::add_random_channels(pipeline, dice);
  detail::add_random_groups(pipeline, dice);
  std::reverse(pipeline.groups.begin(), pipeline.groups.end());
  detail::add_random_layout(out, dice, max_microbatches);
  return out;
}

/// The same pipeline with random ZeRO levels. Backwards gather in any order, and some groups several times.
inline PipelineCase in_shards(PipelineCase out, std::uint64_t seed) {
  Dice dice(seed + 77);
  Pipeline& pipeline = out.pipeline;
  for (ReduceGroup& group : pipeline.groups) group.zero = dice.below(group.stage.valid() ? 4 : 2);
  if (dice.chance(50)) return out;
  for (std::size_t s = 0; s < pipeline.stages.size(); ++s) {
    auto& order = pipeline.backward_gathers.emplace_back();
    for (std::size_t g = 0; g < pipeline.groups.size(); ++g) {
      if (pipeline.groups[g].stage != StageId::of(s) || !gathers_in_computes(pipeline.groups[g])) continue;
      for (int times = dice(1, 3); times > 0; --times)
        order.insert(order.begin() + dice.below(static_cast<int>(order.size()) + 1), static_cast<int>(g));
    }
  }
  return out;
}

}  // namespace autopar::testing
