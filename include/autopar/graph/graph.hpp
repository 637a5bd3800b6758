#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/core/ids.hpp>
#include <autopar/graph/concepts.hpp>
#include <autopar/graph/iteration.hpp>

namespace autopar {

/// @brief A directed multigraph with a payload for each node and each edge.
///
/// Nodes and edges are only added, so ids stay valid and dense. Parallel edges and self-loops are stored as given;
/// algorithms decide whether they are valid.
///
/// @invariant `source(e)` and `target(e)` are nodes of the graph; `out_edges` and `in_edges` list edges in the order
/// added.
/// @cost every access O(1); 56 bytes for each node and 16 for each edge besides the payloads
/// @tparam Node payload of a node, movable
/// @tparam Edge payload of an edge, movable
template <class Node, class Edge>
class Graph {
 public:
  using NodePayload = Node;
  using EdgePayload = Edge;

  /// @brief Reserves memory, so that building a graph of known size does not reallocate.
  void reserve(std::size_t nodes, std::size_t edges) {
    nodes_.reserve(nodes);
    edges_.reserve(edges);
  }

  /// @brief Adds a node without edges. Amortised O(1). @return its id, the node count before the call
  NodeId add_node(Node payload = {}) {
    const auto id = NodeId::of(nodes_.size());
    nodes_.push_back({std::move(payload), {}, {}});
    return id;
  }

  /// @brief Adds an edge from `source` to `target`. Amortised O(1). @return its id, the edge count before the call
  /// @throws InvalidArgument if either end is not a node of this graph
  EdgeId add_edge(NodeId source, NodeId target, Edge payload = {}) {
    require_node(source, "source");
    require_node(target, "target");
    const auto id = EdgeId::of(edges_.size());
    edges_.push_back({std::move(payload), source, target});
    nodes_[source.index()].out.push_back(id);
    nodes_[target.index()].in.push_back(id);
    return id;
  }

  [[nodiscard]] std::size_t node_count() const noexcept { return nodes_.size(); }
  [[nodiscard]] std::size_t edge_count() const noexcept { return edges_.size(); }
  [[nodiscard]] bool empty() const noexcept { return nodes_.empty(); }

  /// @brief All node ids, ascending.
  [[nodiscard]] auto nodes() const { return id_range<NodeId>(nodes_.size()); }
  /// @brief All edge ids, ascending.
  [[nodiscard]] auto edges() const { return id_range<EdgeId>(edges_.size()); }

  /// @brief The payload of a node. @pre `id` is a node of this graph (unchecked, O(1))
  [[nodiscard]] Node& operator[](NodeId id) { return nodes_[id.index()].payload; }
  [[nodiscard]] const Node& operator[](NodeId id) const { return nodes_[id.index()].payload; }

  /// @brief The payload of an edge. @pre `id` is an edge of this graph (unchecked, O(1))
  [[nodiscard]] Edge& operator[](EdgeId id) { return edges_[id.index()].payload; }
  [[nodiscard]] const Edge& operator[](EdgeId id) const { return edges_[id.index()].payload; }

  [[nodiscard]] NodeId source(EdgeId id) const { return edges_[id.index()].source; }
  [[nodiscard]] NodeId target(EdgeId id) const { return edges_[id.index()].target; }

  /// @brief Edges that leave a node, in the order added. Invalidated by `add_edge` and `add_node`.
  [[nodiscard]] std::span<const EdgeId> out_edges(NodeId id) const { return nodes_[id.index()].out; }
  /// @brief Edges that enter a node, in the order added. Invalidated by `add_edge` and `add_node`.
  [[nodiscard]] std::span<const EdgeId> in_edges(NodeId id) const { return nodes_[id.index()].in; }

  /// @brief `successors_of(*this, id)`: parallel edges repeat a node.
  [[nodiscard]] auto successors(NodeId id) const { return successors_of(*this, id); }
  /// @brief `predecessors_of(*this, id)`: parallel edges repeat a node.
  [[nodiscard]] auto predecessors(NodeId id) const { return predecessors_of(*this, id); }

 private:
  struct NodeRecord {
    Node payload;
    std::vector<EdgeId> out;
    std::vector<EdgeId> in;
  };
  struct EdgeRecord {
    Edge payload;
    NodeId source;
    NodeId target;
  };

  void require_node(NodeId id, const char* end) const {
    if (id.index() >= nodes_.size()) {
      throw InvalidArgument("Graph::add_edge: the " + std::string(end) + " is node " + std::to_string(id.value()) +
                            ", but the graph has " + std::to_string(nodes_.size()) + " nodes; add the node first");
    }
  }

  std::vector<NodeRecord> nodes_;
  std::vector<EdgeRecord> edges_;
};

static_assert(BidirectionalGraph<Graph<int, int>>);

}  // namespace autopar
