#pragma once

#include <concepts>
#include <functional>
#include <span>
#include <utility>

#include <autopar/core/cluster.hpp>
#include <autopar/cost/concepts.hpp>
#include <autopar/cost/links.hpp>

namespace autopar {

/// A cost model for a task graph that is not a neural network. One function gives the cost of a node, another the value
/// of an edge. Links come from a cluster, and nothing is trained.
///
///     auto cost = WeightedCost(cluster, [](const Tasks& g, NodeId t, double n) { return NodeCost{g[t].seconds * n}; },
///                              [](const Tasks& g, EdgeId e) { return ValueProfile{e.value(), {g[e].bytes, 0}, false};
///                              });
///
/// @tparam Node  (graph, NodeId, double samples) -> NodeCost
/// @tparam Value (graph, EdgeId) -> ValueProfile
template <class Node, class Value>
class WeightedCost {
 public:
  WeightedCost(Cluster cluster, Node node, Value value)
      : cluster_(std::move(cluster)), node_(std::move(node)), value_(std::move(value)) {}

  template <class G>
  [[nodiscard]] NodeCost node(const G& graph, NodeId id, double samples) const {
    return std::invoke(node_, graph, id, samples);
  }
  template <class G>
  [[nodiscard]] ValueProfile value(const G& graph, EdgeId edge) const {
    return std::invoke(value_, graph, edge);
  }
  [[nodiscard]] Seconds transfer(Bytes bytes, Rank from, Rank to) const {
    return point_to_point(cluster_, bytes, from, to);
  }
  [[nodiscard]] Seconds all_reduce(Bytes bytes, std::span<const Rank> ranks) const {
    return all_reduce_time(cluster_, bytes, ranks);
  }
  [[nodiscard]] Seconds update(Bytes, double) const { return {}; }

  [[nodiscard]] const Cluster& cluster() const { return cluster_; }

 private:
  Cluster cluster_;
  Node node_;
  Value value_;
};

}  // namespace autopar
