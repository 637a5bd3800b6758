#pragma once

#include <concepts>
#include <span>

#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>
#include <autopar/cost/model_profile.hpp>
#include <autopar/graph/concepts.hpp>

namespace autopar {

/// What one node costs on one device for one slice of a micro-batch.
struct NodeCost {
  Seconds forward{};
  Seconds backward{};         ///< of inputs and parameters together; 0 in a graph that is only run forwards
  Bytes saved{};              ///< kept from the node's forward until its backward
  Bytes workspace{};          ///< extra bytes while it or its backward runs, beside what it keeps
  Seconds backward_weight{};  ///< part of `backward` that only parameters need and that can be deferred
  Bytes deferred_weight{};    ///< kept in the place of `saved` when that part is deferred, until it is done
  Bytes forward_workspace{};  ///< of `workspace`, while it runs: no more
  friend bool operator==(const NodeCost&, const NodeCost&) = default;
};

/// Predicts what the nodes of a graph cost on the devices of a cluster.
///
/// - `node(graph, id, samples)`: one execution on `samples` samples (> 0).
/// - `value(graph, edge)`: what flows along an edge; edges with one `value` id carry the same value, sent once.
/// - `transfer(bytes, from, to)`: one message, alone on its link.
/// - `all_reduce(bytes, ranks)`: sum over at least two ranks, in place.
/// - `update(bytes, factor)`: one optimizer step on parameters of `bytes` with `factor` x as much state.
///
/// Laws (tests/unit/cost/concepts_test.cpp checks them for the models here): results are non-negative and finite; a set
/// of nodes takes the sum of its nodes' times and saved bytes, and the largest of their workspaces at most; `node` does
/// not shrink with samples, nor `transfer`, `all_reduce` and `update` with bytes; equal arguments give equal results.
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

/// A cost model that also knows bytes that a node holds all the time, whatever the batch (tables, code, …).
template <class M, class G>
concept HasResidentBytes = requires(const M& model, const G& graph, NodeId node) {
  { model.resident(graph, node) } -> std::same_as<Bytes>;
};

/// A cost model that knows which nodes cost no less a sample in a small slice than in a large one, and whose updates of
/// parts take together no less than one update of all. Plans get a lower bound that can be checked from it.
template <class M, class G>
concept HasEconomyOfScale = requires(const M& model, const G& graph, NodeId node) {
  { model.economy_of_scale(graph, node) } -> std::same_as<bool>;
};

/// A cost model that knows what an optimizer step takes on parameters that it keeps in the host's memory, from
/// gradients that are complete on the device to parameters that are there again. Planners take it as no less than
/// `update`.
template <class M>
concept UpdatesOnHost = requires(const M& model, Bytes bytes, double factor) {
  { model.offloaded_update(bytes, factor) } -> std::same_as<Seconds>;
};

/// What one of the shards that compute a node in slices takes of the times of a device that computes it whole.
struct ShardShare {
  double forward = 1, backward = 1;
};

/// A cost model that knows what a shard with such a share of a node's work takes, as not all of its time is work: no
/// less than that share, no more than all. With other models it is that share of the time.
template <class M, class G>
concept CostsShards = requires(const M& model, const G& graph, NodeId node, double samples, double share) {
  { model.shard_share(graph, node, samples, share) } -> std::same_as<ShardShare>;
};

/// A cost model that takes from an operator of a captured model its structure, its work, its saved bytes and workspace
/// and whether it has parameters, and nothing else: equal operators are asked for once.
template <class M>
concept CostsByValue = requires {
  requires M::kCostsByValue;
};

/// A cost model that can bound an all-reduce of `replicas` ranks from below, wherever the ranks are. Prunes the search.
template <class M>
concept BoundsAllReduce = requires(const M& model, Bytes bytes, int replicas) {
  { model.least_all_reduce(bytes, replicas) } -> std::same_as<Seconds>;
};

/// A cost model that can bound a message between two ranks from below, wherever they are. Prunes the search.
template <class M>
concept BoundsTransfer = requires(const M& model, Bytes bytes) {
  { model.least_transfer(bytes) } -> std::same_as<Seconds>;
};

}  // namespace autopar
