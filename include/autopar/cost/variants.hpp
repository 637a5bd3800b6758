#pragma once

#include <concepts>
#include <string>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/graph/concepts.hpp>

namespace autopar {

/// One way to run a node under one tensor degree: recomputed or not, sharded so or so.
struct NodeVariant {
  std::string name;
  double work = 0;                  ///< seconds of a micro-batch on one replica
  double bytes_in_flight = 0;       ///< held for each micro-batch in flight
  double bytes = 0;                 ///< held always
  double parameters = 0;            ///< bytes of parameters
  std::vector<double> in{}, out{};  ///< bytes if the i-th incoming (outgoing) edge crosses the border of the stage
};

/// Predicts what the variants of nodes cost, for searches that choose among them. Time, memory and communication of a
/// variant are data; tensor parallelism and recomputation are no special cases.
///
/// - `tensor_degrees()`: those that any node can run, ascending.
/// - `replicas(devices)`: data degrees that tile the batch, ascending, at most `devices`; their sum over stages may not
///   exceed `most_replicas()`.
/// - `variants(graph, node, degree)`: empty if the node cannot run so.
/// - `work_share(d)`, `border_cost(d)`, `parameter_cost(d)`: a stage of d replicas takes work * work_share + crossing
///   bytes * border_cost + parameters * parameter_cost seconds a micro-batch.
///
/// Laws (`check_tables` refuses what breaks the first): results are finite and not negative; equal arguments give equal
/// results.
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
