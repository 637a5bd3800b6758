#pragma once

#include <cstddef>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/torch/checkpoint_format.hpp>

#include "torch/checkpoint/checkpoint_items.hpp"
#include "torch/parameters/shard_slices.hpp"

namespace autopar::checkpoint {

/// Some elements of an item, and the rank whose file has them.
struct Piece {
  std::size_t item = 0;
  Rank writer;
  parameters::ShardSlices slices;
};

/// All elements of a tensor with so many.
[[nodiscard]] inline parameters::ShardSlices whole_of(const TensorEntry& entry) {
  return Interval{0, entry.bytes().value() / size_of(entry.dtype).value()};
}

/// Who writes what: each element of each item once. In the order of the items; the same on all ranks. What several
/// ranks hold alike is written by those with the fewest bytes so far.
[[nodiscard]] std::vector<Piece> pieces_of(const std::vector<CheckpointItem>& items, CheckpointFormat format);

}  // namespace autopar::checkpoint
