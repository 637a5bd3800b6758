#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include <autopar/graph/algorithms/acyclic_coarsening.hpp>
#include <autopar/plan/concepts.hpp>

namespace autopar {

/// RaNNC's blocks: neighbours are matched level by level, the lightest node first, each with the successor that saves
/// most communication, as long as the pair is not much slower than the average; then the smallest blocks go to their
/// lighter neighbours in a topological order, until at most `max_blocks` are left. A baseline, not a good coarsening.
///
/// Memory is not looked at here: what does not fit is refused where stages are made.
/// @cost O(levels * edges log edges + blocks^2)
/// @source Tanaka, Taura, Hanawa, Torisawa, "Automatic Graph Partitioning for Very Large-scale Deep Learning", IPDPS
///         2021, and what pyrannc 0.7.5 does; written from a description of both
struct RanncBlocks {
  using policy_category = coarsening_policy_tag;
  int max_blocks = 32;
  int min_blocks = 5;        ///< matching ends here
  int measured_nodes = 200;  ///< with more nodes than this the time of a pair is not looked at, only its members'

  [[nodiscard]] Partition coarsen(const Workload& work, std::int64_t samples, int least_blocks) const {
    const auto fewest = static_cast<std::size_t>(std::max(min_blocks, least_blocks));
    Partition blocks = Partition::singletons(work.graph.node_count());
    while (blocks.block_count() > fewest) {
      const auto graph = quotient(work.graph, blocks);
      const auto merged = matched(work, graph, samples, blocks.block_count() - fewest);
      if (merged.block_count() == blocks.block_count() || merged.block_count() < fewest) break;
      blocks = composed(blocks, merged);
    }
    return without_small(work, blocks, samples, static_cast<std::size_t>(std::max(max_blocks, least_blocks)));
  }

 private:
  /// A partition of blocks as one of the nodes in them.
  static Partition composed(const Partition& blocks, const Partition& of_blocks) {
    std::vector<BlockId> block_of;
    for (const NodeId node : id_range<NodeId>(blocks.node_count()))
      block_of.push_back(of_blocks.block_of(node_of(blocks.block_of(node))));
    return Partition(std::move(block_of));
  }

  /// Seconds of a micro-batch, by block.
  static std::vector<double> times(const Workload& work, const QuotientGraph& graph, std::int64_t samples) {
    const auto& costs = work.node_costs(samples);
    std::vector<double> time(graph.node_count(), 0);
    for (const NodeId block : graph.nodes()) {
      for (const NodeId member : graph[block])
        time[block.index()] += (costs[member.index()].forward + costs[member.index()].backward).value();
    }
    return time;
  }

  /// One level of matching. @param most  pairs
  Partition matched(const Workload& work, const QuotientGraph& graph, std::int64_t samples, std::size_t most) const {
    const std::vector<double> time = times(work, graph, samples);
    const std::size_t n = time.size();
    const double mean = std::accumulate(time.begin(), time.end(), 0.0) / static_cast<double>(n);
    double squares = 0;
    for (const double t : time) squares += (t - mean) * (t - mean);
    const double limit = mean + 2 * std::sqrt(squares / static_cast<double>(n));
    const bool measured = n <= static_cast<std::size_t>(measured_nodes);
    std::vector<NodeId> order;
    for (const NodeId node : graph.nodes()) order.push_back(node);
    std::stable_sort(order.begin(), order.end(), [&](NodeId a, NodeId b) { return time[a.index()] < time[b.index()]; });
    std::vector<bool> taken(n, false);
    std::vector<std::vector<NodeId>> pairs;
    for (const NodeId node : order) {
      if (taken[node.index()] || pairs.size() == most) continue;
      double gain = -1;
      NodeId with = NodeId::none();
      for (const EdgeId edge : graph.out_edges(node)) {
        const NodeId next = graph.target(edge);
        const double a = time[node.index()], b = time[next.index()];
        if (taken[next.index()] || (measured ? a + b : std::max(a, b)) > limit) continue;
        double bytes = 0;
        for (const EdgeId original : graph[edge]) bytes += work.graph[original].bytes.at(static_cast<double>(samples));
        if (bytes <= gain || has_way_round(graph, node, next)) continue;
        gain = bytes;
        with = next;
      }
      if (!with.valid()) continue;
      taken[node.index()] = taken[with.index()] = true;
      pairs.push_back({node, with});
    }
    return acyclic_coarsening(graph, pairs);
  }

  /// Whether a path other than the edge itself leads from one node to the next, so that the pair is not convex.
  static bool has_way_round(const QuotientGraph& graph, NodeId from, NodeId to) {
    std::vector<bool> seen(graph.node_count(), false);
    std::vector<NodeId> open;
    const auto visit = [&](NodeId node) {
      if (seen[node.index()]) return;
      seen[node.index()] = true;
      open.push_back(node);
    };
    if (graph.in_edges(to).size() == 1) return false;
    for (const NodeId next : graph.successors(from)) {
      if (next != to) visit(next);
    }
    while (!open.empty()) {
      const NodeId node = open.back();
      open.pop_back();
      if (node == to) return true;
      for (const NodeId next : graph.successors(node)) visit(next);
    }
    return false;
  }

  static Partition without_small(const Workload& work, const Partition& blocks, std::int64_t samples,
                                 std::size_t most) {
    const auto graph = quotient(work.graph, blocks);
    const std::vector<double> time = times(work, graph, samples);
    std::vector<std::pair<double, std::vector<NodeId>>> row;  // consecutive in a topological order
    for (const NodeId block : topological_order(graph)) row.push_back({time[block.index()], {block}});
    while (row.size() > most) {
      const auto least =
          std::min_element(row.begin(), row.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
      const bool left = least + 1 == row.end() || (least != row.begin() && (least - 1)->first < (least + 1)->first);
      const auto into = left ? least - 1 : least, gone = into + 1;
      into->first += gone->first;
      into->second.insert(into->second.end(), gone->second.begin(), gone->second.end());
      row.erase(gone);
    }
    std::vector<BlockId> block_of(blocks.block_count());
    for (std::size_t i = 0; i < row.size(); ++i) {
      for (const NodeId block : row[i].second) block_of[block.index()] = BlockId::of(i);
    }
    return composed(blocks, Partition(std::move(block_of)));
  }
};
static_assert(CoarseningPolicy<RanncBlocks>);

}  // namespace autopar
