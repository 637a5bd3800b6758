#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <string>
#include <vector>

#include <autopar/bottleneck/variants.hpp>
#include <autopar/core/error.hpp>
#include <autopar/graph/algorithms/topological_order.hpp>
#include <autopar/graph/graph.hpp>
#include <autopar/graph/iteration.hpp>

namespace autopar {

/// The devices that a plan may use.
struct DeviceLimits {
  int devices = 1;
  double memory = 0;  ///< bytes of one device
};

/// A pipeline problem as values, shared by the exact bottleneck search, its certificate and its checker.
///
/// A stage has a convex set of nodes, a data degree d (its replicas), a tensor degree, and one variant for each of its
/// nodes. A micro-batch takes it work * `work_share[d]` + crossing bytes * `border_cost[d]` + parameters *
/// `parameter_cost[d]` seconds. It holds bytes_in_flight * ceil(sum of d of this and later stages / d) + bytes for each
/// node. It occupies d * tensor degree devices. Wanted: the pipeline on `devices` devices whose slowest stage is
/// fastest.
struct VariantTables {
  Graph<std::int64_t, char> graph;  ///< nodes hold the user's ids
  std::vector<int> tensor_degrees;
  std::vector<std::vector<std::vector<NodeVariant>>> variants;  ///< [node][position of the tensor degree]
  std::vector<int> replicas;                                    ///< data degrees, ascending
  std::vector<double> work_share, border_cost, parameter_cost;  ///< by position in `replicas`
  int devices = 1;
  int most_replicas = 1;  ///< limit of the sum of data degrees
  double memory = 0;      ///< bytes of one device
};

/// One stage of a solution.
struct VariantStage {
  std::vector<NodeId> nodes;
  int replicas = 1;
  int tensor_degree = 1;
  std::vector<int> variants;  ///< by position in `nodes`
};

namespace detail {

inline void demand(bool holds, const std::string& what) {
  if (!holds) throw InvalidArgument(what);
}

}  // namespace detail

/// @throws InvalidArgument on a cycle, a negative or non-finite cost, a node that no degree can run, no device
inline void check_tables(const VariantTables& tables) {
  detail::demand(tables.devices >= 1, "a plan needs at least one device, not " + std::to_string(tables.devices));
  detail::demand(tables.memory > 0 && std::isfinite(tables.memory),
                 "the memory of a device must be positive and finite");
  detail::demand(tables.graph.node_count() > 0, "the graph to plan has no node");
  detail::demand(!tables.replicas.empty() && tables.replicas.front() >= 1, "no data degree is allowed");
  (void)topological_order(tables.graph);
  const auto legal = [](double value) { return value >= 0 && value < 1e30; };  // false for NaN
  for (const auto* costs : {&tables.work_share, &tables.border_cost, &tables.parameter_cost}) {
    detail::demand(costs->size() == tables.replicas.size() && std::all_of(costs->begin(), costs->end(), legal),
                   "the costs of data degrees are negative, not numbers or incomplete; is the bandwidth positive?");
  }
  for (const NodeId node : tables.graph.nodes()) {
    const std::string name = "node " + std::to_string(tables.graph[node]);
    bool runs = false;
    for (const auto& choices : tables.variants[node.index()]) {
      for (const NodeVariant& v : choices) {
        runs = true;
        const bool edges =
            std::all_of(v.in.begin(), v.in.end(), legal) && std::all_of(v.out.begin(), v.out.end(), legal);
        detail::demand(edges && legal(v.work) && legal(v.bytes_in_flight) && legal(v.bytes) && legal(v.parameters),
                       name + ", variant '" + v.name + "', has a cost that is negative, infinite or not a number");
        detail::demand(
            v.in.size() == tables.graph.in_edges(node).size() && v.out.size() == tables.graph.out_edges(node).size(),
            name + ", variant '" + v.name + "', does not state the bytes of every edge");
      }
    }
    detail::demand(runs, name + " has no variant under any tensor degree");
  }
}

/// The tables of any graph with any cost model.
/// @throws InvalidArgument as `check_tables`
template <BidirectionalGraph G, VariantCostModel<G> M>
[[nodiscard]] VariantTables make_tables(const G& graph, const M& model, const DeviceLimits& limits) {
  detail::demand(limits.devices >= 1, "a plan needs at least one device, not " + std::to_string(limits.devices));
  VariantTables tables;
  tables.devices = limits.devices;
  tables.memory = limits.memory;
  tables.tensor_degrees = model.tensor_degrees();
  tables.replicas = model.replicas(limits.devices);
  tables.most_replicas = model.most_replicas();
  for (const int replicas : tables.replicas) {
    tables.work_share.push_back(model.work_share(replicas));
    tables.border_cost.push_back(model.border_cost(replicas));
    tables.parameter_cost.push_back(model.parameter_cost(replicas));
  }
  for (const NodeId node : nodes_of(graph)) {
    std::int64_t id = node.value();
    if constexpr (requires {
                    { graph[node] } -> std::convertible_to<std::int64_t>;
                  })
      id = graph[node];
    tables.graph.add_node(id);
    auto& degrees = tables.variants.emplace_back();
    for (const int degree : tables.tensor_degrees) degrees.push_back(model.variants(graph, node, degree));
  }
  for (const EdgeId edge : edges_of(graph)) tables.graph.add_edge(graph.source(edge), graph.target(edge), 0);
  check_tables(tables);
  return tables;
}

}  // namespace autopar
