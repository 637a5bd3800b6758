#pragma once
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <random>
#include <vector>

#include <autopar/graph/graph.hpp>

/// Small random graphs for property tests, the same for the same seed on every platform, and brute-force counterparts.
namespace autopar::random_graphs {

using PlainGraph = Graph<int, int>;

/// A number in [0, bound). Distributions of the standard library differ between platforms.
inline std::size_t below(std::mt19937& random, std::size_t bound) { return random() % bound; }

/// An acyclic graph with shuffled ids, 0 to `max_nodes` nodes, sparse to dense, now and then with parallel edges.
inline PlainGraph random_dag(std::mt19937& random, std::size_t max_nodes) {
  PlainGraph graph;
  const std::size_t nodes = below(random, max_nodes + 1);
  for (std::size_t i = 0; i < nodes; ++i) graph.add_node();
  std::vector<std::size_t> id(nodes);
  std::iota(id.begin(), id.end(), std::size_t{0});
  for (std::size_t i = nodes; i > 1; --i) std::swap(id[i - 1], id[below(random, i)]);
  const std::size_t density = 1 + below(random, 9);
  for (std::size_t a = 0; a < nodes; ++a) {
    for (std::size_t b = a + 1; b < nodes; ++b) {
      if (below(random, 10) >= density) continue;
      const std::size_t copies = below(random, 8) == 0 ? 2 : 1;
      for (std::size_t copy = 0; copy < copies; ++copy) graph.add_edge(NodeId::of(id[a]), NodeId::of(id[b]));
    }
  }
  return graph;
}

/// Any directed graph: cycles, self-loops and parallel edges included.
inline PlainGraph random_digraph(std::mt19937& random, std::size_t max_nodes) {
  PlainGraph graph;
  const std::size_t nodes = below(random, max_nodes + 1);
  for (std::size_t i = 0; i < nodes; ++i) graph.add_node();
  const std::size_t edges = nodes == 0 ? 0 : below(random, 2 * nodes + 1);
  for (std::size_t i = 0; i < edges; ++i) {
    const NodeId source = NodeId::of(below(random, nodes));
    graph.add_edge(source, NodeId::of(below(random, nodes)));
  }
  return graph;
}

/// 0 -> 1 -> … -> nodes - 1.
inline PlainGraph chain(std::size_t nodes) {
  PlainGraph graph;
  graph.reserve(nodes, nodes);
  for (std::size_t i = 0; i < nodes; ++i) {
    const NodeId node = graph.add_node();
    if (i > 0) graph.add_edge(NodeId::of(i - 1), node);
  }
  return graph;
}

/// paths[a][b]: whether a path of at least one edge leads from a to b (Warshall).
inline std::vector<std::vector<bool>> brute_force_paths(const PlainGraph& graph) {
  const std::size_t n = graph.node_count();
  std::vector<std::vector<bool>> paths(n, std::vector<bool>(n, false));
  for (const EdgeId edge : graph.edges()) paths[graph.source(edge).index()][graph.target(edge).index()] = true;
  for (std::size_t k = 0; k < n; ++k) {
    for (std::size_t a = 0; a < n; ++a) {
      for (std::size_t b = 0; b < n; ++b) {
        if (paths[a][k] && paths[k][b]) paths[a][b] = true;
      }
    }
  }
  return paths;
}

/// Straight from the definition: no a, b inside and c outside with paths a -> c -> b.
inline bool brute_force_convex(const std::vector<std::vector<bool>>& paths, std::size_t mask) {
  const std::size_t n = paths.size();
  const auto inside = [&](std::size_t node) { return ((mask >> node) & 1) != 0; };
  for (std::size_t c = 0; c < n; ++c) {
    if (inside(c)) continue;
    bool left = false, back = false;
    for (std::size_t a = 0; a < n; ++a) {
      if (!inside(a)) continue;
      left = left || paths[a][c];
      back = back || paths[c][a];
    }
    if (left && back) return false;
  }
  return true;
}

}  // namespace autopar::random_graphs
