#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include <autopar/cost/concepts.hpp>
#include <autopar/cost/model_profile.hpp>
#include <autopar/graph/algorithms/topological_order.hpp>
#include <autopar/plan/plan.hpp>

namespace autopar::detail {

/// Derives the cases of a certificate again, from the profile, the costs, and the plan's world and batch alone.
template <class M>
class BoundChecker {
 public:
  BoundChecker(const ModelProfile& model, const M& costs, const Plan& plan)
      : model_(model), costs_(costs), plan_(plan) {
    for (const NodeId atom : model.graph.nodes()) {
      once_ = once_ || model.graph[atom].whole_batch || model.graph[atom].totals > Bytes(0);
      if constexpr (HasEconomyOfScale<M, Graph<OpProfile, ValueProfile>>) {
        if (costs.economy_of_scale(model.graph, atom)) counted_.push_back(atom);
      }
    }
  }

  /// @return the bound that the evidence supports, 0 if none; appends what is wrong to `faults`. Cases and bounds that
  /// claim less than what is derived are accepted.
  [[nodiscard]] Seconds check(const Certificate& claim, std::vector<std::string>& faults) const {
    if (counted_.empty()) {
      if (claim.lower_bound > Seconds{} || !claim.cases.empty()) faults.push_back("these costs support no lower bound");
      return {};
    }
    int next = 1;
    double least = std::numeric_limits<double>::infinity();
    for (const BoundCase& one : claim.cases) {
      if (one.from != next || (one.to != 0 && one.to < one.from) || next == 0) {
        faults.push_back("the cases of the certificate leave out or repeat some number of micro-batches");
        return {};
      }
      const double found = one.kind == BoundKind::kWork ? work(one.from) : path(one.to);
      if (!(one.seconds.value() <= found * (1 + kRounding))) {
        faults.push_back("the certificate's case from " + std::to_string(one.from) + " micro-batches on states " +
                         std::to_string(one.seconds.value() * 1e3) + " ms, but it is " + std::to_string(found * 1e3) +
                         " ms");
      }
      least = std::min(least, found);
      next = one.to == 0 ? 0 : one.to + 1;
    }
    // An atom that needs the whole batch allows one micro-batch only.
    if (next != 0 && !(once_ && next == 2)) {
      faults.push_back("the cases of the certificate do not cover every number of micro-batches");
      return {};
    }
    if (claim.lower_bound.value() > least * (1 + kRounding)) {
      faults.push_back("the certificate states a lower bound of " + std::to_string(claim.lower_bound.value() * 1e3) +
                       " ms, but its cases support no more than " + std::to_string(least * 1e3) + " ms");
    }
    if (!(claim.lower_bound > Seconds{})) faults.push_back("the certificate states no lower bound");
    return Seconds(least);
  }

 private:
  /// Least seconds for all work, spread evenly over the ranks, in the largest slices that `microbatches` or more allow.
  [[nodiscard]] double work(std::int64_t microbatches) const {
    const std::int64_t low = plan_.batch / plan_.world, more = plan_.batch % plan_.world;
    const auto pieces = [&](std::int64_t local) { return local / microbatches + (local % microbatches > 0 ? 1 : 0); };
    const auto slice = static_cast<double>(pieces(low) * (plan_.world - more) + pieces(low + 1) * more);
    double seconds = 0;
    for (const NodeId atom : counted_) {
      const NodeCost cost = costs_.node(model_.graph, atom, slice);
      seconds += (cost.forward.value() + cost.backward.value()) / slice * static_cast<double>(plan_.batch);
    }
    std::set<ParameterId> trained;
    for (const NodeId atom : model_.graph.nodes()) {
      for (const ParameterId parameter : model_.graph[atom].parameters) {
        if (model_.parameters[parameter.index()].trainable) trained.insert(parameter);
      }
    }
    Bytes bytes{};
    for (const ParameterId parameter : trained) bytes += model_.parameters[parameter.index()].bytes;
    return (seconds + costs_.update(bytes, plan_.optimizer_state_factor).value()) / plan_.world;
  }

  /// Longest path of a micro-batch forward and, if gradients come back, backward. Weight gradients count only at its
  /// end, because a schedule may defer them. 0 stands for any number of micro-batches.
  [[nodiscard]] double path(std::int64_t microbatches) const {
    const std::int64_t own = plan_.batch / plan_.world;
    const std::int64_t least = microbatches == 0 ? 1 : std::max<std::int64_t>(1, own / microbatches);
    std::vector<double> arrival(model_.graph.node_count(), 0), ascent(arrival);  // before the atom, then with it
    double longest = 0;
    for (const NodeId atom : topological_order(model_.graph)) {
      const bool mixes = model_.graph[atom].whole_batch;
      const NodeCost cost = at_best(atom, mixes ? plan_.batch : least);
      arrival[atom.index()] += cost.forward.value();
      const double weights = cost.backward_weight.value();
      ascent[atom.index()] = std::max(ascent[atom.index()], weights) + (cost.backward.value() - weights);
      longest = std::max(longest, arrival[atom.index()] + ascent[atom.index()]);
      for (const EdgeId edge : model_.graph.out_edges(atom)) {
        const std::size_t target = model_.graph.target(edge).index();
        arrival[target] = std::max(arrival[target], arrival[atom.index()]);
        if (model_.graph[edge].differentiable) ascent[target] = std::max(ascent[target], ascent[atom.index()]);
      }
    }
    return longest;
  }

  /// The cost of an atom on as many tensor shards as the certificate and the atom's region allow.
  [[nodiscard]] NodeCost at_best(NodeId atom, std::int64_t samples) const {
    NodeCost cost = costs_.node(model_.graph, atom, static_cast<double>(samples));
    for (const TensorRegion& region : model_.tensor_regions) {
      if (!std::binary_search(region.atoms.begin(), region.atoms.end(), atom)) continue;
      double part = 1;
      for (std::int64_t shards = 2; shards <= std::min<std::int64_t>(plan_.certificate.tensor_parallel, region.units);
           ++shards) {
        if (region.even && region.units % shards != 0) continue;
        const std::int64_t most = region.units / shards + (region.units % shards == 0 ? 0 : 1);
        part = std::min(part, static_cast<double>(most) / static_cast<double>(region.units));
      }
      if (part == 1) continue;
      double forward = part, backward = part;
      if constexpr (CostsShards<M, Graph<OpProfile, ValueProfile>>) {
        const ShardShare share = costs_.shard_share(model_.graph, atom, static_cast<double>(samples), part);
        forward = share.forward;
        backward = share.backward;
      }
      cost.forward = cost.forward * forward;
      cost.backward = cost.backward * backward;
      cost.backward_weight = cost.backward_weight * backward;
    }
    return cost;
  }

  static constexpr double kRounding = 1e-9;

  const ModelProfile& model_;
  const M& costs_;
  const Plan& plan_;
  std::vector<NodeId> counted_;
  bool once_ = false;  // one micro-batch only
};

}  // namespace autopar::detail
