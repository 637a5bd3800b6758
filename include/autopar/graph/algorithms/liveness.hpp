#pragma once
#include <algorithm>
#include <concepts>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>
#include <autopar/graph/algorithms/topological_order.hpp>
#include <autopar/graph/concepts.hpp>
#include <autopar/graph/iteration.hpp>

namespace autopar {

/// @brief Positions of an order between which a value must be kept, both included.
struct LiveInterval {
  std::size_t born = 0;      ///< position of the node that makes it
  std::size_t last_use = 0;  ///< position of the last node that reads it; `born` if none does
  friend bool operator==(const LiveInterval&, const LiveInterval&) = default;
};

/// @brief When the output of each node is alive if the nodes run in `order`.
/// @return by node id
/// @throws InvalidArgument unless `order` is a topological order of `graph`
/// @cost O(nodes + edges)
template <DirectedGraph G>
[[nodiscard]] std::vector<LiveInterval> liveness(const G& graph, const std::vector<NodeId>& order) {
  const auto position = positions_in(graph, order);
  std::vector<LiveInterval> intervals(order.size());
  for (const NodeId node : nodes_of(graph)) {
    LiveInterval& interval = intervals[node.index()];
    interval = {position[node.index()], position[node.index()]};
    for (const NodeId reader : successors_of(graph, node)) {
      interval.last_use = std::max(interval.last_use, position[reader.index()]);
    }
  }
  return intervals;
}

/// @brief Bytes alive while each position of the order runs.
/// @param intervals  of the outputs, by node id, as `liveness` returns them
/// @param bytes      size of a node's output
/// @return by position; the largest is the peak
/// @throws InvalidArgument if an interval ends before it begins or beyond the last position
/// @cost O(nodes), one call of `bytes` a node
template <std::invocable<NodeId> OutputBytes>
[[nodiscard]] std::vector<Bytes> live_bytes(std::span<const LiveInterval> intervals, const OutputBytes& bytes) {
  std::vector<Bytes> change(intervals.size() + 1);
  for (std::size_t node = 0; node < intervals.size(); ++node) {
    const auto [born, last_use] = intervals[node];
    if (born > last_use || last_use >= intervals.size()) {
      throw InvalidArgument("live_bytes: the interval of node " + std::to_string(node) + " is [" +
                            std::to_string(born) + ", " + std::to_string(last_use) + "] among " +
                            std::to_string(intervals.size()) + " positions");
    }
    const Bytes size = std::invoke(bytes, NodeId::of(node));
    change[born] += size;
    change[last_use + 1] -= size;
  }
  Bytes alive{};
  for (Bytes& entry : change) entry = alive += entry;
  change.pop_back();
  return change;
}

}  // namespace autopar
