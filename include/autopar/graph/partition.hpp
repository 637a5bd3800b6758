#pragma once
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/core/ids.hpp>
#include <autopar/graph/concepts.hpp>

namespace autopar {

using BlockId = Index<struct BlockTag>;  ///< block of a Partition

/// @brief Disjoint, non-empty blocks that together contain every node of a graph.
///
/// @invariant every node has a block; block ids are dense; no block is empty
class Partition {
 public:
  Partition() = default;

  /// @param block_of  block of each node, by node id
  /// @throws InvalidArgument if a block id is negative or an id below the largest is unused
  explicit Partition(std::vector<BlockId> block_of) : block_of_(std::move(block_of)) {
    for (std::size_t node = 0; node < block_of_.size(); ++node) {
      const BlockId block = block_of_[node];
      // More blocks than nodes cannot all be used, and an invalid id must not determine the size of the table.
      if (!block.valid() || block.index() >= block_of_.size()) {
        throw InvalidArgument("Partition: node " + std::to_string(node) + " has block " +
                              std::to_string(block.value()) + "; blocks are numbered from 0 without gaps");
      }
      if (block.index() >= members_.size()) members_.resize(block.index() + 1);
      members_[block.index()].push_back(NodeId::of(node));
    }
    for (std::size_t block = 0; block < members_.size(); ++block) {
      if (members_[block].empty()) {
        throw InvalidArgument("Partition: block " + std::to_string(block) + " of " + std::to_string(members_.size()) +
                              " has no node; blocks are numbered from 0 without gaps");
      }
    }
  }

  /// @brief Every node in a separate block, with the node's number.
  [[nodiscard]] static Partition singletons(std::size_t nodes) {
    std::vector<BlockId> block_of;
    block_of.reserve(nodes);
    for (std::size_t node = 0; node < nodes; ++node) block_of.push_back(BlockId::of(node));
    return Partition(std::move(block_of));
  }

  [[nodiscard]] std::size_t node_count() const noexcept { return block_of_.size(); }
  [[nodiscard]] std::size_t block_count() const noexcept { return members_.size(); }
  /// @pre `node` is a node of the graph (unchecked)
  [[nodiscard]] BlockId block_of(NodeId node) const { return block_of_[node.index()]; }
  /// @brief Nodes of a block, ascending. @pre `block` is a block (unchecked)
  [[nodiscard]] const std::vector<NodeId>& members(BlockId block) const { return members_[block.index()]; }

  /// @brief Whether every block of this partition lies inside one block of `coarser`. O(nodes).
  [[nodiscard]] bool refines(const Partition& coarser) const {
    if (coarser.node_count() != node_count()) return false;
    for (const auto& block : members_) {
      for (const NodeId node : block) {
        if (coarser.block_of(node) != coarser.block_of(block.front())) return false;
      }
    }
    return true;
  }

  friend bool operator==(const Partition&, const Partition&) = default;

 private:
  std::vector<BlockId> block_of_;
  std::vector<std::vector<NodeId>> members_;
};

/// @throws InvalidArgument unless `partition` is a partition of the nodes of `graph`
template <DirectedGraph G>
void require_partition_of(const G& graph, const Partition& partition) {
  if (partition.node_count() != graph.node_count()) {
    throw InvalidArgument("a partition of " + std::to_string(partition.node_count()) +
                          " nodes does not fit a graph of " + std::to_string(graph.node_count()) + " nodes");
  }
}

}  // namespace autopar
