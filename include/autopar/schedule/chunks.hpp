#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/core/ids.hpp>
#include <autopar/schedule/concepts.hpp>
#include <autopar/schedule/pipeline.hpp>

namespace autopar {

/// The mesh at each position of a pipeline, in order; a position is a device of a pipeline without replicas. Positions
/// are disjoint and may have different numbers of ranks.
using Positions = std::vector<Mesh>;

/// The stages of a pipeline that passes its positions `chunks` times, always from the first to the last. Stage s is at
/// position s mod p. With one chunk, each position has one stage.
/// @source Narayanan et al., SC'21, arXiv:2104.04473, section 2.2.2
[[nodiscard]] inline std::vector<Mesh> looped_stages(const Positions& positions, int chunks) {
  std::vector<Mesh> stages;
  for (int c = 0; c < chunks; ++c) stages.insert(stages.end(), positions.begin(), positions.end());
  return stages;
}

/// The stages of a pipeline that goes to the last position and back: stages s and 2p - 1 - s are at position s. The
/// first and the last stage are thus on the same ranks, and so are the middle two.
/// @source Qi et al., NeurIPS 2024, arXiv:2405.15362, section 3
[[nodiscard]] inline std::vector<Mesh> v_shaped_stages(const Positions& positions) {
  std::vector<Mesh> stages = positions;
  stages.insert(stages.end(), positions.rbegin(), positions.rend());
  return stages;
}

/// The positions of a pipeline's stages. Positions are numbered in the order of their first stages.
struct ChunkLayout {
  std::vector<std::vector<Rank>> positions;  ///< ranks of each position, ascending
  std::vector<std::size_t> at;               ///< position of each stage
  [[nodiscard]] int size() const { return static_cast<int>(positions.size()); }
  /// The number of stages at each position, if it is the same for all.
  [[nodiscard]] int chunks() const { return static_cast<int>(at.size() / positions.size()); }

  [[nodiscard]] bool is_looped() const {
    for (std::size_t s = 0; s < at.size(); ++s) {
      if (at[s] != s % positions.size()) return false;
    }
    return at.size() % positions.size() == 0;
  }
  [[nodiscard]] bool is_v_shaped() const {
    for (std::size_t s = 0; s < at.size(); ++s) {
      if (at[s] != std::min(s, at.size() - 1 - s)) return false;
    }
    return at.size() == 2 * positions.size();
  }
};

/// @throws InvalidArgument if two stages share only some of their ranks
[[nodiscard]] inline ChunkLayout chunk_layout(const Pipeline& pipeline) {
  ChunkLayout out;
  std::vector<int> stage_at(static_cast<std::size_t>(pipeline.ranks), -1);  // the first stage of each rank
  for (std::size_t s = 0; s < pipeline.stages.size(); ++s) {
    auto ranks = pipeline.stages[s].ranks();
    std::sort(ranks.begin(), ranks.end());
    std::size_t position = 0;
    while (position < out.positions.size() && out.positions[position] != ranks) ++position;
    out.at.push_back(position);
    if (position < out.positions.size()) continue;
    for (const Rank rank : ranks) {
      const int other = std::exchange(stage_at.at(rank.index()), static_cast<int>(s));
      if (other < 0) continue;
      throw InvalidArgument("schedule policy: stages " + std::to_string(other) + " and " + std::to_string(s) +
                            " share rank " + std::to_string(rank.value()) +
                            ", but not all of their ranks; put them on the same or on different ones");
    }
    out.positions.push_back(std::move(ranks));
  }
  return out;
}

/// Where a schedule requires the stages of a pipeline.
enum class StageLayout : std::uint8_t {
  kStraight,  ///< each at its own position
  kLooped,    ///< `looped_stages`
  kVShaped,   ///< `v_shaped_stages`
  kAnywhere,
};

/// Whether the layout is possible with `chunks` stages at each position.
[[nodiscard]] constexpr bool allows_chunks(StageLayout layout, int chunks) {
  switch (layout) {
    case StageLayout::kStraight:
      return chunks == 1;
    case StageLayout::kLooped:
      return chunks >= 2;
    case StageLayout::kVShaped:
      return chunks == 2;
    case StageLayout::kAnywhere:
      return chunks >= 1;
  }
  return false;
}

/// The position of a stage in a pipeline with this layout.
[[nodiscard]] constexpr int position_in(StageLayout layout, int stage, int positions) {
  return layout == StageLayout::kVShaped ? std::min(stage, 2 * positions - 1 - stage) : stage % positions;
}

/// Whether stages have the layout. A straight layout is also a looped one, with one chunk.
[[nodiscard]] inline bool lies_in(StageLayout layout, const ChunkLayout& stages) {
  switch (layout) {
    case StageLayout::kStraight:
      return stages.at.size() == stages.positions.size();
    case StageLayout::kLooped:
      return stages.is_looped();
    case StageLayout::kVShaped:
      return stages.is_v_shaped();
    case StageLayout::kAnywhere:
      return true;
  }
  return false;
}

namespace detail {

/// Turns orders of positions into orders of their ranks.
[[nodiscard]] inline std::vector<std::vector<ComputeAction>> orders_of_ranks(
    const Pipeline& pipeline, const ChunkLayout& layout, const std::vector<std::vector<ComputeAction>>& orders) {
  std::vector<std::vector<ComputeAction>> out(static_cast<std::size_t>(pipeline.ranks));
  for (std::size_t d = 0; d < orders.size(); ++d) {
    for (const Rank rank : layout.positions[d]) out[rank.index()] = orders[d];
  }
  return out;
}

}  // namespace detail

}  // namespace autopar
