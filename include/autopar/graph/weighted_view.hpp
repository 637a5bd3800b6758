#pragma once
#include <concepts>
#include <cstddef>
#include <functional>
#include <utility>

#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>
#include <autopar/graph/concepts.hpp>

namespace autopar {

/// @brief Makes any graph a WeightedGraph: the graph plus functions for the cost of a node and the bytes of an edge.
///
/// @invariant refers to the graph, which must outlive the view; owns the functions
template <BidirectionalGraph G, std::invocable<NodeId> Cost, std::invocable<EdgeId> EdgeBytes>
requires std::same_as<std::invoke_result_t<const EdgeBytes&, EdgeId>, Bytes>
class WeightedView {
 public:
  WeightedView(const G& graph, Cost cost, EdgeBytes bytes)
      : graph_(&graph), cost_(std::move(cost)), bytes_(std::move(bytes)) {}
  WeightedView(const G&& graph, Cost cost, EdgeBytes bytes) = delete;

  [[nodiscard]] std::size_t node_count() const { return graph_->node_count(); }
  [[nodiscard]] std::size_t edge_count() const { return graph_->edge_count(); }
  [[nodiscard]] decltype(auto) out_edges(NodeId node) const { return graph_->out_edges(node); }
  [[nodiscard]] decltype(auto) in_edges(NodeId node) const { return graph_->in_edges(node); }
  [[nodiscard]] NodeId source(EdgeId edge) const { return graph_->source(edge); }
  [[nodiscard]] NodeId target(EdgeId edge) const { return graph_->target(edge); }
  [[nodiscard]] auto cost(NodeId node) const { return std::invoke(cost_, node); }
  [[nodiscard]] Bytes bytes(EdgeId edge) const { return std::invoke(bytes_, edge); }

 private:
  const G* graph_;
  Cost cost_;
  EdgeBytes bytes_;
};

}  // namespace autopar
