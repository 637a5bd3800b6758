#pragma once
#include <cstddef>
#include <utility>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/graph/partition.hpp>

namespace autopar::detail {

/// @brief Union-find over nodes. @cost O(α(nodes)) amortised an operation
/// @source Tarjan and van Leeuwen, Worst-case analysis of set union algorithms, J. ACM 31(2), 1984 (path halving)
class DisjointSets {
 public:
  explicit DisjointSets(std::size_t nodes) : parent_(nodes), size_(nodes, 1) {
    for (std::size_t node = 0; node < nodes; ++node) parent_[node] = node;
  }

  void unite(NodeId a, NodeId b) {
    std::size_t big = root(a.index());
    std::size_t small = root(b.index());
    if (big == small) return;
    if (size_[big] < size_[small]) std::swap(big, small);
    parent_[small] = big;
    size_[big] += size_[small];
  }

  /// @brief The sets as blocks, numbered by their smallest nodes.
  [[nodiscard]] Partition partition() {
    std::vector<BlockId> block_of_root(parent_.size(), BlockId::none());
    std::vector<BlockId> block_of;
    block_of.reserve(parent_.size());
    std::size_t blocks = 0;
    for (std::size_t node = 0; node < parent_.size(); ++node) {
      BlockId& block = block_of_root[root(node)];
      if (!block.valid()) block = BlockId::of(blocks++);
      block_of.push_back(block);
    }
    return Partition(std::move(block_of));
  }

 private:
  std::size_t root(std::size_t node) {
    while (parent_[node] != node) node = parent_[node] = parent_[parent_[node]];
    return node;
  }

  std::vector<std::size_t> parent_;
  std::vector<std::size_t> size_;
};

}  // namespace autopar::detail
