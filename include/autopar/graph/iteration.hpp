#pragma once
#include <cstddef>
#include <ranges>

#include <autopar/core/ids.hpp>
#include <autopar/graph/concepts.hpp>

namespace autopar {

/// @brief The ids 0 … count - 1 as a random-access range; nothing is stored.
template <class Id>
[[nodiscard]] constexpr auto id_range(std::size_t count) {
  return std::views::iota(std::size_t{0}, count) | std::views::transform([](std::size_t i) { return Id::of(i); });
}

/// @brief All node ids of a graph, ascending.
template <DirectedGraph G>
[[nodiscard]] auto nodes_of(const G& graph) {
  return id_range<NodeId>(graph.node_count());
}

/// @brief All edge ids of a graph, ascending.
template <DirectedGraph G>
[[nodiscard]] auto edges_of(const G& graph) {
  return id_range<EdgeId>(graph.edge_count());
}

/// @brief Targets of the edges that leave `node`; parallel edges repeat a node.
template <DirectedGraph G>
[[nodiscard]] auto successors_of(const G& graph, NodeId node) {
  return graph.out_edges(node) | std::views::transform([&graph](EdgeId edge) { return graph.target(edge); });
}

/// @brief Sources of the edges that enter `node`; parallel edges repeat a node.
template <BidirectionalGraph G>
[[nodiscard]] auto predecessors_of(const G& graph, NodeId node) {
  return graph.in_edges(node) | std::views::transform([&graph](EdgeId edge) { return graph.source(edge); });
}

}  // namespace autopar
