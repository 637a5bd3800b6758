#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <autopar/graph/algorithms/topological_order.hpp>
#include <autopar/graph/partition.hpp>
#include <autopar/plan/model/workload.hpp>

namespace autopar {

/// Cuts blocks along a topological order, so that parts of them can be moved however many nodes there are. There are
/// about `count` pieces, and at most `count` plus the number of blocks. Pieces are equally large, except the last one
/// of each block.
///
/// The quotient by pieces is acyclic. Pieces of two blocks close no cycle because the blocks do not; pieces of one
/// block follow the order.
/// @pre the quotient by blocks is acyclic
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
