#pragma once

#include <cstdint>
#include <vector>

#include <autopar/core/interval.hpp>

namespace autopar {

/// Some elements of a tensor, in row-major order: the same ranges of each of several equal blocks, and of these
/// elements, concatenated, a part. Slices by columns have one block per row; a flat shard is a range of one block.
struct ElementSlices {
  std::int64_t blocks = 1;
  std::vector<Interval> ranges{};  ///< within a block, ascending
  Interval part{};

  /// All elements.
  [[nodiscard]] static ElementSlices whole(std::int64_t elements) { return {1, {{0, elements}}, {0, elements}}; }
  friend bool operator==(const ElementSlices&, const ElementSlices&) = default;
};

}  // namespace autopar
