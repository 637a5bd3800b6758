#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <autopar/graph/algorithms/topological_order.hpp>
#include <autopar/graph/partition.hpp>
#include <autopar/plan/model/workload.hpp>

namespace autopar {

/// Blocks cut along a topological order, so that parts of them can be moved, of however many nodes: about `count`
/// pieces, and no more than `count` plus the number of blocks, equally large but for the last of each block.
///
/// The pieces do not depend on one another in a circle: those of two blocks do not because the blocks do not, those of
/// one follow the order.
/// @pre the blocks do not depend on one another in a circle
/// @cost O(edges + nodes log nodes)
[[nodiscard]] inline Partition cut_into_pieces(const Workload& work, const Partition& blocks, std::size_t count) {
  const std::size_t size = (blocks.node_count() + count - 1) / count;
  std::vector<std::size_t> seen(blocks.block_count(), 0);
  std::vector<BlockId> open(blocks.block_count()), piece_of(blocks.node_count());
  std::int32_t pieces = 0;
  for (const NodeId node : topological_order(work.graph)) {
    const std::size_t block = blocks.block_of(node).index();
    if (seen[block]++ % size == 0) open[block] = BlockId(pieces++);
    piece_of[node.index()] = open[block];
  }
  return Partition(std::move(piece_of));
}

}  // namespace autopar
