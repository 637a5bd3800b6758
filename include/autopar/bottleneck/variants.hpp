#pragma once

#include <concepts>
#include <string>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/graph/concepts.hpp>

namespace autopar {

/// One way to run a node at one tensor degree: a choice of sharding and recomputation.
struct NodeVariant {
  std::string name;
  double work = 0;                  ///< seconds for one micro-batch on one replica
  double bytes_in_flight = 0;       ///< bytes for each micro-batch in flight
  double bytes = 0;                 ///< bytes independent of micro-batches
  double parameters = 0;            ///< bytes of parameters
  std::vector<double> in{}, out{};  ///< bytes of the i-th incoming (outgoing) edge if it crosses the stage's boundary
};

/// Predicts the costs of nodes' variants, for searches that choose among them. Time, memory and communication of a
/// variant are data; tensor parallelism and recomputation are not special cases.
///
/// - `tensor_degrees()`: the degrees that at least one node supports, ascending.
/// - `replicas(devices)`: data degrees that tile the batch, ascending, at most `devices`. Their sum over stages must
///   not exceed `most_replicas()`.
/// - `variants(graph, node, degree)`: empty if the node does not support the degree.
/// - `work_share(d)`, `border_cost(d)`, `parameter_cost(d)`: a stage of d replicas takes work * work_share + crossing
///   bytes * border_cost + parameters * parameter_cost seconds for each micro-batch.
///
/// Laws: results are finite and not negative (`check_tables` checks it); equal arguments give equal results.
template <class M, class G>
concept VariantCostModel = BidirectionalGraph<G> &&
    requires(const M& model, const G& graph, NodeId node, int degree, int devices) {
  { model.tensor_degrees() } -> std::convertible_to<std::vector<int>>;
  { model.replicas(devices) } -> std::convertible_to<std::vector<int>>;
  { model.most_replicas() } -> std::convertible_to<int>;
  { model.variants(graph, node, degree) } -> std::convertible_to<std::vector<NodeVariant>>;
  { model.work_share(devices) } -> std::convertible_to<double>;
  { model.border_cost(devices) } -> std::convertible_to<double>;
  { model.parameter_cost(devices) } -> std::convertible_to<double>;
};

}  // namespace autopar
