#pragma once
#include <concepts>
#include <cstddef>
#include <ranges>
#include <type_traits>

#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>

namespace autopar {

/// @brief A multi-pass range of `T`, by value or by reference.
template <class R, class T>
concept RangeOf =
    std::ranges::forward_range<R> && std::same_as<std::remove_cvref_t<std::ranges::range_reference_t<R>>, T>;

/// @brief A directed multigraph that can be walked from sources to targets.
///
/// Laws: node ids are dense, 0 … node_count() - 1, and so are edge ids. `out_edges` partitions the edges by their
/// source. Repeated calls on an unchanged graph give the same ranges in the same order. Self-loops and parallel edges
/// are legal.
template <class G>
concept DirectedGraph = requires(const G& graph, NodeId node, EdgeId edge) {
  { graph.node_count() } -> std::same_as<std::size_t>;
  { graph.edge_count() } -> std::same_as<std::size_t>;
  { graph.out_edges(node) } -> RangeOf<EdgeId>;
  { graph.target(edge) } -> std::same_as<NodeId>;
};

/// @brief A directed multigraph that can be walked both ways.
///
/// Laws: `in_edges(n)` holds exactly the edges whose `target` is `n`, and `out_edges(n)` those whose `source` is `n`.
template <class G>
concept BidirectionalGraph = DirectedGraph<G> && requires(const G& graph, NodeId node, EdgeId edge) {
  { graph.in_edges(node) } -> RangeOf<EdgeId>;
  { graph.source(edge) } -> std::same_as<NodeId>;
};

}  // namespace autopar
