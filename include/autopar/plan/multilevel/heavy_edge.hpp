#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include <autopar/graph/algorithms/acyclic_coarsening.hpp>
#include <autopar/graph/algorithms/downsets.hpp>
#include <autopar/graph/algorithms/quotient.hpp>
#include <autopar/graph/algorithms/topological_order.hpp>
#include <autopar/graph/graph.hpp>
#include <autopar/plan/concepts.hpp>
#include <autopar/plan/search_budget.hpp>

namespace autopar {

/// Leaves the nodes as they are.
struct NoCoarsening {
  using policy_category = coarsening_policy_tag;
  [[nodiscard]] Partition coarsen(const Workload& work, std::int64_t, int) const {
    return Partition::singletons(work.graph.node_count());
  }
};
static_assert(CoarseningPolicy<NoCoarsening>);

/// Heavy-edge matching, level by level, until blocks and cuts are few enough. The ends of the heaviest values are
/// merged first, as long as no block gets more than its share of time and memory. Cycles between blocks are merged. A
/// graph that is small from the start is left alone.
/// @cost O(edges log edges) if each level halves the blocks, and counting at most `max_tails` downsets for each level
/// @source Karypis, Kumar, "A Fast and High Quality Multilevel Scheme", SIAM J. Sci. Comput. 20(1), 1998; acyclic
///         variant as in Herrmann et al., "Multilevel Algorithms for Acyclic Partitioning", 2019
struct HeavyEdge {
  using policy_category = coarsening_policy_tag;
  int max_blocks = 40;
  std::size_t max_tails = SearchBudget{}.downsets;

  /// @param samples       the slice at which nodes and values are weighed
  /// @param least_blocks  stages that the user asks for: at least so many blocks are left, if the graph has the nodes
  [[nodiscard]] Partition coarsen(const Workload& work, std::int64_t samples, int least_blocks) const {
    const auto fewest = static_cast<std::size_t>(std::max(1, least_blocks));
    const auto most = std::max(fewest, static_cast<std::size_t>(max_blocks));
    const std::vector<double> weight = weights(work, samples);
    const double whole = std::accumulate(weight.begin(), weight.end(), 0.0);
    double limit = 1.5 * whole / static_cast<double>(most);
    std::vector<BlockId> block_of;
    for (const NodeId node : work.graph.nodes()) block_of.push_back(BlockId(node.value()));
    Level level = finest(work, weight, samples);
    for (int rounds = 0; rounds < 200; ++rounds) {
      const std::size_t blocks = level.node_count();
      if (blocks <= fewest || (blocks <= most && count_downsets(level, max_tails))) break;
      // The last level merges no more than it must, so that blocks stay small.
      const std::size_t pairs = blocks > most ? blocks - most : blocks;
      Partition merged = matched(level, limit, pairs);
      // Cycles between pairs may have merged too much: fewer pairs make fewer cycles.
      for (std::size_t few = pairs / 2; few > 0 && merged.block_count() < fewest; few /= 2)
        merged = matched(level, limit, few);
      const bool useless = merged.block_count() == blocks && limit > 2 * whole;
      if (useless || merged.block_count() < fewest) merged = neighbours(level, blocks - fewest);
      const bool stuck = merged.block_count() > most && merged.block_count() * 20 > blocks * 19;
      if (stuck || merged.block_count() == blocks) limit *= 1.5;  // blocks are full: let them grow
      level = coarser(level, merged);
      for (BlockId& block : block_of) block = merged.block_of(node_of(block));
    }
    return Partition(std::move(block_of));
  }

 private:
  /// Blocks with the sum of their shares of the whole time and memory, and the bytes from one block to another. Edges
  /// ascend by source and target; none are parallel.
  using Level = Graph<double, double>;

  static Level finest(const Workload& work, const std::vector<double>& weight, std::int64_t samples) {
    Level level;
    level.reserve(work.graph.node_count(), work.graph.edge_count());
    for (const double own : weight) level.add_node(own);
    std::vector<Leaving> leaving;
    for (const NodeId node : work.graph.nodes()) {
      leaving.clear();
      for (const EdgeId edge : work.graph.out_edges(node))
        leaving.emplace_back(work.graph.target(edge), work.graph[edge].bytes.at(static_cast<double>(samples)));
      add_edges(level, node, leaving);
    }
    return level;
  }

  static Level coarser(const Level& level, const Partition& merged) {
    Level out;
    out.reserve(merged.block_count(), level.edge_count());
    for (const BlockId block : id_range<BlockId>(merged.block_count())) {
      double weight = 0;
      for (const NodeId member : merged.members(block)) weight += level[member];
      out.add_node(weight);
    }
    std::vector<Leaving> leaving;
    for (const BlockId block : id_range<BlockId>(merged.block_count())) {
      leaving.clear();
      for (const NodeId member : merged.members(block)) {
        for (const EdgeId edge : level.out_edges(member)) {
          const BlockId target = merged.block_of(level.target(edge));
          if (target != block) leaving.emplace_back(node_of(target), level[edge]);
        }
      }
      add_edges(out, node_of(block), leaving);
    }
    return out;
  }

  using Leaving = std::pair<NodeId, double>;  // target, bytes

  /// Adds a node's edges; edges with the same target become one.
  static void add_edges(Level& level, NodeId source, std::vector<Leaving>& leaving) {
    std::sort(leaving.begin(), leaving.end());
    for (std::size_t i = 0; i < leaving.size();) {
      const NodeId target = leaving[i].first;
      double bytes = 0;
      for (; i < leaving.size() && leaving[i].first == target; ++i) bytes += leaving[i].second;
      level.add_edge(source, target, bytes);
    }
  }

  /// For blocks that no value joins: pairs of neighbours in a topological order, which close no cycle.
  static Partition neighbours(const Level& level, std::size_t max_pairs) {
    const auto order = topological_order(level);
    const std::size_t pairs = std::min(max_pairs, order.size() / 2);
    std::vector<BlockId> pair_of(order.size());
    for (std::size_t i = 0; i < order.size(); ++i)
      pair_of[order[i].index()] = BlockId::of(i < 2 * pairs ? i / 2 : i - pairs);
    return Partition(std::move(pair_of));
  }

  /// By node: the sum of its shares of the whole time and of the whole memory.
  static std::vector<double> weights(const Workload& work, std::int64_t samples) {
    const auto& costs = work.node_costs(samples);
    std::vector<double> time, memory;
    for (const NodeId node : work.graph.nodes()) {
      const NodeCost& cost = costs[node.index()];
      double bytes = static_cast<double>((cost.saved + work.graph[node].resident).value());
      for (const ParameterId p : work.graph[node].parameters) {
        bytes += 4 * static_cast<double>(work.parameters[p.index()].bytes.value());
      }
      time.push_back((cost.forward + cost.backward).value());
      memory.push_back(bytes);
    }
    const double all_time = std::max(1e-300, std::accumulate(time.begin(), time.end(), 0.0));
    const double all_memory = std::max(1.0, std::accumulate(memory.begin(), memory.end(), 0.0));
    for (std::size_t i = 0; i < time.size(); ++i) time[i] = time[i] / all_time + memory[i] / all_memory;
    return time;
  }

  static Partition matched(const Level& level, double limit, std::size_t max_pairs) {
    std::vector<std::tuple<double, double, EdgeId>> candidates;  // heaviest value, then lightest pair first
    candidates.reserve(level.edge_count());
    for (const EdgeId edge : level.edges())
      candidates.emplace_back(-level[edge], level[level.source(edge)] + level[level.target(edge)], edge);
    std::sort(candidates.begin(), candidates.end());
    std::vector<bool> taken(level.node_count(), false);
    std::vector<std::vector<NodeId>> groups;
    for (const auto& [bytes, pair_load, edge] : candidates) {
      const NodeId from = level.source(edge), to = level.target(edge);
      if (groups.size() == max_pairs) break;
      if (taken[from.index()] || taken[to.index()] || pair_load > limit) continue;
      taken[from.index()] = taken[to.index()] = true;
      groups.push_back({from, to});
    }
    return acyclic_coarsening(level, groups);
  }
};
static_assert(CoarseningPolicy<HeavyEdge>);

}  // namespace autopar
