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

/// Where the stages of a pipeline with p positions lie.
enum class StageLayout : std::uint8_t {
  kStraight,  ///< each at its own position
  kLooped,    ///< always from the first position to the last: stage s at position s mod p (arXiv:2104.04473, 2.2.2)
  kVShaped,   ///< to the last position and back: stages s and 2p - 1 - s at position s (arXiv:2405.15362, 3)
  kAnywhere,
};

/// Whether the layout is possible with `chunks` stages at each position.
[[nodiscard]] constexpr bool allows_chunks(StageLayout layout, int chunks) {
  if (layout == StageLayout::kStraight) return chunks == 1;
  if (layout == StageLayout::kVShaped) return chunks == 2;
  return chunks >= (layout == StageLayout::kLooped ? 2 : 1);
}

/// The position of a stage in a pipeline with this layout.
[[nodiscard]] constexpr int position_in(StageLayout layout, int stage, int positions) {
  return layout == StageLayout::kVShaped ? std::min(stage, 2 * positions - 1 - stage) : stage % positions;
}

/// The stages of a pipeline with this layout.
/// @param chunks  stages at each position; a V has two
[[nodiscard]] inline std::vector<Mesh> stages_in(StageLayout layout, const Positions& positions, int chunks = 1) {
  const int p = static_cast<int>(positions.size());
  std::vector<Mesh> stages;
  for (int s = 0; s < p * (layout == StageLayout::kVShaped ? 2 : chunks); ++s)
    stages.push_back(positions[static_cast<std::size_t>(position_in(layout, s, p))]);
  return stages;
}

/// The positions of a pipeline's stages. Positions are numbered in the order of their first stages.
struct ChunkLayout {
  std::vector<std::vector<Rank>> positions;  ///< ranks of each position, ascending
  std::vector<std::size_t> at;               ///< position of each stage
  [[nodiscard]] int size() const { return static_cast<int>(positions.size()); }
  /// The number of stages at each position, if it is the same for all.
  [[nodiscard]] int chunks() const { return static_cast<int>(at.size() / positions.size()); }
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

/// Whether stages have the layout. A straight layout is also a looped one, with one chunk.
[[nodiscard]] inline bool lies_in(StageLayout layout, const ChunkLayout& stages) {
  if (layout == StageLayout::kAnywhere) return true;
  const bool counts = layout == StageLayout::kLooped || allows_chunks(layout, stages.chunks());
  if (!counts || stages.at.size() % stages.positions.size() != 0) return false;
  for (std::size_t s = 0; s < stages.at.size(); ++s) {
    if (static_cast<int>(stages.at[s]) != position_in(layout, static_cast<int>(s), stages.size())) return false;
  }
  return true;
}

namespace detail {

/// The orders of ranks, of which those at one position have the same.
/// @param order  (position, positions, chunks): the order of a position
/// @throws InvalidArgument with the text `refusal` unless the pipeline's stages have the layout
template <class Order>
[[nodiscard]] std::vector<std::vector<ComputeAction>> orders_of_ranks(const Pipeline& pipeline, StageLayout layout,
                                                                      const char* refusal, const Order& order) {
  const ChunkLayout stages = chunk_layout(pipeline);
  expect(lies_in(layout, stages), refusal);
  std::vector<std::vector<ComputeAction>> orders(static_cast<std::size_t>(pipeline.ranks));
  for (int d = 0; d < stages.size(); ++d) {
    const std::vector<ComputeAction> computes = order(d, stages.size(), stages.chunks());
    for (const Rank rank : stages.positions[static_cast<std::size_t>(d)]) orders[rank.index()] = computes;
  }
  return orders;
}

}  // namespace detail

}  // namespace autopar
