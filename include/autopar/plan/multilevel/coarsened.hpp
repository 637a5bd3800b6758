#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <autopar/graph/partition.hpp>
#include <autopar/plan/memory/optimizations.hpp>
#include <autopar/plan/model/pipeline_of.hpp>
#include <autopar/plan/model/staging.hpp>
#include <autopar/plan/model/workload.hpp>
#include <autopar/plan/request.hpp>
#include <autopar/plan/step/objective.hpp>

namespace autopar::detail {

/// A workload with the blocks of a partition as nodes, and the objective for stagings of them.
struct Coarsened {
  Partition blocks;
  Workload work;
  Constraints constraints;  ///< with less memory, so that what fits in blocks fits in nodes
  StepObjective objective;

  /// @pre the arguments outlive it
  Coarsened(const Workload& fine, Partition partition, const Cluster& cluster, const Constraints& of_nodes)
      : blocks(is_whole(partition) ? Partition::singletons(partition.node_count()) : std::move(partition)),
        work(whole() ? fine : contracted(fine, blocks, of_nodes.buckets.size)),
        constraints(of_nodes),
        objective(work, cluster, constraints) {
    constraints.memory -= rounding(fine);
    if (constraints.host_memory) *constraints.host_memory -= rounding(fine);
  }
  Coarsened(const Coarsened&) = delete;  // the objective refers to the other members
  Coarsened& operator=(const Coarsened&) = delete;

  /// Each node is its own block.
  [[nodiscard]] bool whole() const { return is_whole(blocks); }

  /// Bytes by which a rank may hold more than blocks predict, because their parameters were bundled.
  [[nodiscard]] Bytes rounding(const Workload& fine) const {
    if (work.parameters.size() == fine.parameters.size()) return {};
    const int owners = constraints.offloads.back() == Offload::kOptimizer ? 1 : 0;  // the optimizer's own parameters
    return Bytes(static_cast<std::int64_t>(fine.parameters.size()) * (constraints.gradient_copies + 2 + owners));
  }

 private:
  [[nodiscard]] static bool is_whole(const Partition& partition) {
    return partition.block_count() == partition.node_count();
  }
};

/// A staging of blocks as a staging of their nodes.
[[nodiscard]] inline Staging projected(const Staging& staging, const Partition& blocks) {
  Staging fine = staging;
  fine.stage_of.assign(blocks.node_count(), 0);
  for (std::size_t node = 0; node < fine.stage_of.size(); ++node)
    fine.stage_of[node] = staging.stage_of[blocks.block_of(NodeId::of(node)).index()];
  return fine;
}

/// A staging of nodes as a staging of blocks. @pre no block is in two stages
[[nodiscard]] inline Staging restricted(const Staging& staging, const Partition& blocks) {
  Staging coarse = staging;
  coarse.stage_of.assign(blocks.block_count(), 0);
  for (std::size_t block = 0; block < coarse.stage_of.size(); ++block)
    coarse.stage_of[block] = staging.stage_of[blocks.members(BlockId::of(block)).front().index()];
  return coarse;
}

/// Segments of blocks as segments of their nodes.
[[nodiscard]] inline MemoryOptimizations projected(MemoryOptimizations optimizations, const Partition& blocks) {
  for (auto& segments : optimizations.recomputed) {
    for (auto& segment : segments) {
      std::vector<NodeId> nodes;
      for (const NodeId block : segment) {
        const auto& members = blocks.members(BlockId(block.value()));
        nodes.insert(nodes.end(), members.begin(), members.end());
      }
      std::sort(nodes.begin(), nodes.end());
      segment = std::move(nodes);
    }
  }
  return optimizations;
}

/// Segments of nodes as segments of the blocks that contain their nodes.
[[nodiscard]] inline MemoryOptimizations restricted(MemoryOptimizations optimizations, const Partition& blocks) {
  for (auto& segments : optimizations.recomputed) {
    for (auto& segment : segments) {
      for (NodeId& node : segment) node = node_of(blocks.block_of(node));
      std::sort(segment.begin(), segment.end());
      segment.erase(std::unique(segment.begin(), segment.end()), segment.end());
    }
  }
  return optimizations;
}

}  // namespace autopar::detail
