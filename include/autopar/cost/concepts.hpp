#pragma once

#include <concepts>
#include <span>

#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>
#include <autopar/cost/model_profile.hpp>
#include <autopar/graph/concepts.hpp>

namespace autopar {

/// The cost of one node on one device for one slice of a micro-batch.
struct NodeCost {
  Seconds forward{};
  Seconds backward{};         ///< of inputs and parameters together; 0 in a graph for inference
  Bytes saved{};              ///< kept from the node's forward until its backward
  Bytes workspace{};          ///< temporary bytes while the node or its backward runs, in addition to `saved`
  Seconds backward_weight{};  ///< part of `backward` that computes parameter gradients and can be deferred
  Bytes deferred_weight{};    ///< kept instead of `saved` while that part is deferred
  Bytes forward_workspace{};  ///< the part of `workspace` that the forward needs; at most `workspace`
  friend bool operator==(const NodeCost&, const NodeCost&) = default;
};

/// Predicts the costs of a graph's nodes on the devices of a cluster.
///
/// - `node(graph, id, samples)`: one execution on `samples` samples (> 0).
/// - `value(graph, edge)`: the value of an edge. Edges with one `value` id carry the same value, which is sent once.
/// - `transfer(bytes, from, to)`: one message, alone on its link.
/// - `all_reduce(bytes, ranks)`: a sum over at least two ranks, in place.
/// - `update(bytes, factor)`: one optimizer step on parameters of `bytes`, whose state takes `factor` times as much.
///
/// Laws (tests/unit/cost/concepts_test.cpp checks them for the models here):
/// - Results are non-negative and finite. Equal arguments give equal results.
/// - A set of nodes takes the sum of its nodes' times and saved bytes, and at most the largest of their workspaces.
/// - `node` does not decrease with samples; `transfer`, `all_reduce` and `update` do not decrease with bytes.
template <class M, class G>
concept CostModel = BidirectionalGraph<G> &&
    requires(const M& model, const G& graph, NodeId node, EdgeId edge, double samples, Bytes bytes, Rank rank,
             std::span<const Rank> ranks) {
  { model.node(graph, node, samples) } -> std::same_as<NodeCost>;
  { model.value(graph, edge) } -> std::convertible_to<ValueProfile>;
  { model.transfer(bytes, rank, rank) } -> std::same_as<Seconds>;
  { model.all_reduce(bytes, ranks) } -> std::same_as<Seconds>;
  { model.update(bytes, samples) } -> std::same_as<Seconds>;
};

/// A cost model that knows the bytes that a node holds permanently, independent of the batch (tables, code, …).
template <class M, class G>
concept HasResidentBytes = requires(const M& model, const G& graph, NodeId node) {
  { model.resident(graph, node) } -> std::same_as<Bytes>;
};

/// A cost model that knows the nodes whose cost per sample is no less in a small slice than in a large one. Its updates
/// of parts take together at least as long as one update of all. Plans then get a lower bound that can be verified.
template <class M, class G>
concept HasEconomyOfScale = requires(const M& model, const G& graph, NodeId node) {
  { model.economy_of_scale(graph, node) } -> std::same_as<bool>;
};

/// A cost model that predicts an optimizer step on parameters in host memory. The step begins with complete gradients
/// on the device and ends with updated parameters on the device. Planners assume that it takes at least as long as
/// `update`.
template <class M>
concept UpdatesOnHost = requires(const M& model, Bytes bytes, double factor) {
  { model.offloaded_update(bytes, factor) } -> std::same_as<Seconds>;
};

/// The share of a node's time that one of its tensor shards takes.
struct ShardShare {
  double forward = 1, backward = 1;
};

/// A cost model that predicts the time of a shard with a given share of a node's work. The result lies between that
/// share and all of the node's time, since some time is not work. For other models it is that share.
template <class M, class G>
concept CostsShards = requires(const M& model, const G& graph, NodeId node, double samples, double share) {
  { model.shard_share(graph, node, samples, share) } -> std::same_as<ShardShare>;
};

/// A cost model that reads only an operator's structure, work, saved bytes and workspace, and whether it has
/// parameters. Equal operators are then evaluated once.
template <class M>
concept CostsByValue = requires {
  requires M::kCostsByValue;
};

/// A cost model that predicts passes over a device's memory: bytes that are read or written once, one after the other.
template <class M>
concept CostsPasses = requires(const M& model, Bytes bytes) {
  { model.passes(bytes) } -> std::same_as<Seconds>;
};

/// A cost model that bounds an all-reduce over any `replicas` ranks from below. Prunes the search.
template <class M>
concept BoundsAllReduce = requires(const M& model, Bytes bytes, int replicas) {
  { model.least_all_reduce(bytes, replicas) } -> std::same_as<Seconds>;
};

/// A cost model that bounds a message between any two ranks from below. Prunes the search.
template <class M>
concept BoundsTransfer = requires(const M& model, Bytes bytes) {
  { model.least_transfer(bytes) } -> std::same_as<Seconds>;
};

}  // namespace autopar
