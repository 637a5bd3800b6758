#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <tuple>
#include <vector>

#include <autopar/graph/algorithms/acyclic_coarsening.hpp>
#include <autopar/graph/algorithms/downsets.hpp>
#include <autopar/plan/concepts.hpp>

namespace autopar {

/// Leaves the nodes as they are.
struct NoCoarsening {
  using policy_category = coarsening_policy_tag;
  [[nodiscard]] Partition coarsen(const Workload& work, std::int64_t, int) const {
    return Partition::singletons(work.graph.node_count());
  }
};
static_assert(CoarseningPolicy<NoCoarsening>);

/// Heavy-edge matching, level by level, until few enough blocks with few enough cuts are left: ends of the heaviest
/// values come together first, as long as no block gets more than its share of time and memory. Circles between blocks
/// are merged. A graph that is small from the start is left alone.
/// @cost O(levels * edges log edges) and counting at most `max_tails` downsets a level
/// @source Karypis, Kumar, "A Fast and High Quality Multilevel Scheme", SIAM J. Sci. Comput. 20(1), 1998; acyclic
///         variant as in Herrmann et al., "Multilevel Algorithms for Acyclic Partitioning", 2019
struct HeavyEdge {
  using policy_category = coarsening_policy_tag;
  int max_blocks = 40;
  std::size_t max_tails = 20'000;

  /// @param samples       the share at which nodes and values are weighed
  /// @param least_blocks  stages that the user asks for: no fewer blocks are left, if the graph has them
  [[nodiscard]] Partition coarsen(const Workload& work, std::int64_t samples, int least_blocks) const {
    const auto fewest = static_cast<std::size_t>(std::max(1, least_blocks));
    const auto most = std::max(fewest, static_cast<std::size_t>(max_blocks));
    std::vector<double> weight = weights(work, samples);
    Partition blocks = Partition::singletons(work.graph.node_count());
    const double whole = std::accumulate(weight.begin(), weight.end(), 0.0);
    double limit = 1.5 * whole / static_cast<double>(most);
    for (int rounds = 0; rounds < 200; ++rounds) {
      const auto graph = quotient(work.graph, blocks);
      if (graph.node_count() <= fewest) return blocks;
      if (graph.node_count() <= most && count_downsets(graph, max_tails)) return blocks;
      // The last level puts together no more than it must, so that blocks stay small.
      const std::size_t pairs = graph.node_count() > most ? graph.node_count() - most : graph.node_count();
      Partition merged = matched(work, graph, blocks, weight, samples, limit, pairs);
      // Circles between pairs may have drawn too much together: fewer pairs make fewer circles.
      for (std::size_t few = pairs / 2; few > 0 && merged.block_count() < fewest; few /= 2) {
        merged = matched(work, graph, blocks, weight, samples, limit, few);
      }
      const bool useless = merged.block_count() == blocks.block_count() && limit > 2 * whole;
      if (useless || merged.block_count() < fewest) merged = neighbours(blocks, graph, graph.node_count() - fewest);
      const bool stuck = merged.block_count() > most && merged.block_count() * 20 > blocks.block_count() * 19;
      if (stuck || merged.block_count() == blocks.block_count()) limit *= 1.5;  // blocks are full: let them grow
      blocks = std::move(merged);
    }
    return blocks;
  }

 private:
  /// For blocks that no value joins: pairs that follow one another in a topological order, which closes no circle.
  static Partition neighbours(const Partition& blocks, const QuotientGraph& graph, std::size_t max_pairs) {
    const auto order = topological_order(graph);
    const std::size_t pairs = std::min(max_pairs, order.size() / 2);
    std::vector<BlockId> pair_of(order.size());
    for (std::size_t i = 0; i < order.size(); ++i)
      pair_of[order[i].index()] = BlockId::of(i < 2 * pairs ? i / 2 : i - pairs);
    std::vector<BlockId> block_of;
    for (const NodeId node : id_range<NodeId>(blocks.node_count())) {
      block_of.push_back(pair_of[blocks.block_of(node).index()]);
    }
    return Partition(std::move(block_of));
  }

  /// Shares of the whole time and of the whole memory, added.
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
    for (std::size_t i = 0; i < time.size(); ++i)
      time[i] = time[i] / all_time + memory[i] / all_memory;
    return time;
  }

  static Partition matched(const Workload& work, const QuotientGraph& graph, const Partition& blocks,
                           const std::vector<double>& weight, std::int64_t samples, double limit,
                           std::size_t max_pairs) {
    std::vector<double> load(graph.node_count(), 0);
    for (const NodeId block : graph.nodes()) {
      for (const NodeId member : graph[block])
        load[block.index()] += weight[member.index()];
    }
    std::vector<std::tuple<double, double, EdgeId>> candidates;  // heaviest value, then lightest pair first
    for (const EdgeId edge : graph.edges()) {
      double bytes = 0;
      for (const EdgeId original : graph[edge])
        bytes += work.graph[original].bytes.at(static_cast<double>(samples));
      candidates.emplace_back(-bytes, load[graph.source(edge).index()] + load[graph.target(edge).index()], edge);
    }
    std::sort(candidates.begin(), candidates.end());
    std::vector<bool> taken(graph.node_count(), false);
    std::vector<std::vector<NodeId>> groups;
    for (const auto& [bytes, pair_load, edge] : candidates) {
      const NodeId from = graph.source(edge), to = graph.target(edge);
      if (groups.size() == max_pairs) break;
      if (taken[from.index()] || taken[to.index()] || pair_load > limit) continue;
      taken[from.index()] = taken[to.index()] = true;
      groups.push_back({from, to});
    }
    const Partition pairs = acyclic_coarsening(graph, groups);
    std::vector<BlockId> block_of;
    for (const NodeId node : work.graph.nodes())
      block_of.push_back(pairs.block_of(node_of(blocks.block_of(node))));
    return Partition(std::move(block_of));
  }
};
static_assert(CoarseningPolicy<HeavyEdge>);

}  // namespace autopar
