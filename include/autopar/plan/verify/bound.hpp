#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <autopar/cost/concepts.hpp>
#include <autopar/graph/algorithms/topological_order.hpp>
#include <autopar/plan/verify/costs.hpp>
#include <autopar/plan/verify/stated_plan.hpp>

namespace autopar::verify {

/// Derives the cases of a certificate again, from the profile, the costs, and the plan's world and batch alone.
template <class M>
class BoundCheck {
 public:
  BoundCheck(const StatedPlan& stated, const M& costs)
      : stated_(stated), model_(stated.model), plan_(stated.plan), costs_(costs) {
    for (const NodeId atom : model_.graph.nodes()) {
      once_ |= model_.graph[atom].whole_batch || model_.graph[atom].totals > Bytes(0);
      if constexpr (HasEconomyOfScale<M, Graph<OpProfile, ValueProfile>>) {
        if (costs.economy_of_scale(model_.graph, atom)) counted_.push_back(atom);
      }
    }
  }

  /// @return the bound that the evidence supports, 0 if none; appends what is wrong to `faults`. Cases and bounds that
  /// claim less than what is derived are accepted.
  [[nodiscard]] Seconds check(std::vector<std::string>& faults) const {
    const Certificate& claim = plan_.certificate;
    const auto ms = [](double seconds) { return std::to_string(seconds * 1e3) + " ms"; };
    const auto fault = [&](const std::string& what) { faults.push_back("the certificate " + what); };
    if (counted_.empty()) {
      if (claim.lower_bound > Seconds{} || !claim.cases.empty())
        fault("has a lower bound, but these costs support none");
      return {};
    }
    int next = 1;  // number of micro-batches; 0: all are covered
    double least = std::numeric_limits<double>::infinity();
    for (const BoundCase& one : claim.cases) {
      if (next == 0 || one.from != next || (one.to != 0 && one.to < one.from)) {
        fault("has cases that leave out or repeat some number of micro-batches");
        return {};
      }
      const double found = one.kind == BoundKind::kWork ? work(one.from) : path(one.to);
      if (!(one.seconds.value() <= found * kRounded)) {
        fault("states " + ms(one.seconds.value()) + " from " + std::to_string(one.from) +
              " micro-batches on, but it is " + ms(found));
      }
      least = std::min(least, found);
      next = one.to == 0 ? 0 : one.to + 1;
    }
    if (next != 0 && !(once_ && next == 2)) {  // an atom that needs the whole batch allows one micro-batch only
      fault("has cases that do not cover every number of micro-batches");
      return {};
    }
    if (claim.lower_bound.value() > least * kRounded) {
      fault("states a lower bound of " + ms(claim.lower_bound.value()) + ", but its cases support no more than " +
            ms(least));
    }
    if (!(claim.lower_bound > Seconds{})) fault("states no lower bound");
    return Seconds(least);
  }

 private:
  /// Least seconds for all work, spread evenly over the ranks, in the largest slices that `microbatches` or more allow.
  [[nodiscard]] double work(std::int64_t microbatches) const {
    std::int64_t slices = 0;
    for (const std::int64_t local : stated_.layout.local) slices += (local + microbatches - 1) / microbatches;
    const auto slice = static_cast<double>(slices);
    double seconds = 0;
    for (const NodeId atom : counted_) {
      const NodeCost cost = costs_.node(model_.graph, atom, slice);
      seconds += (cost.forward + cost.backward).value() / slice * static_cast<double>(plan_.batch);
    }
    Bytes trained{};
    for (std::size_t p = 0; p < model_.parameters.size(); ++p) {
      if (model_.parameters[p].trainable && !stated_.readers[p].empty()) trained += model_.parameters[p].bytes;
    }
    return (seconds + costs_.update(trained, plan_.optimizer_state_factor).value()) / plan_.world;
  }

  /// Longest path of a micro-batch forward and, if gradients come back, backward. Weight gradients count only at its
  /// end, because a schedule may defer them. 0 stands for any number of micro-batches.
  [[nodiscard]] double path(std::int64_t microbatches) const {
    const std::int64_t own = plan_.batch / plan_.world;
    const std::int64_t least = microbatches == 0 ? 1 : std::max<std::int64_t>(1, own / microbatches);
    std::vector<double> arrival(model_.graph.node_count(), 0), ascent(arrival);  // before the atom, then with it
    double longest = 0;
    for (const NodeId atom : topological_order(model_.graph)) {
      const std::int64_t samples = model_.graph[atom].whole_batch ? plan_.batch : least;
      const NodeCost cost = least_cost(atom, samples);
      double &down = arrival[atom.index()], &up = ascent[atom.index()];
      down += cost.forward.value();
      up = std::max(up, cost.backward_weight.value()) + (cost.backward - cost.backward_weight).value();
      longest = std::max(longest, down + up);
      for (const EdgeId edge : model_.graph.out_edges(atom)) {
        const std::size_t target = model_.graph.target(edge).index();
        arrival[target] = std::max(arrival[target], down);
        if (model_.graph[edge].differentiable) ascent[target] = std::max(ascent[target], up);
      }
    }
    return longest;
  }

  /// On as many tensor shards as the certificate and the atom's region allow.
  [[nodiscard]] NodeCost least_cost(NodeId atom, std::int64_t samples) const {
    const auto count = static_cast<double>(samples);
    const NodeCost whole = costs_.node(model_.graph, atom, count);
    const auto has_atom = [&](const TensorRegion& one) { return std::ranges::binary_search(one.atoms, atom); };
    const auto region = std::ranges::find_if(model_.tensor_regions, has_atom);
    if (region == model_.tensor_regions.end()) return whole;
    auto shards = static_cast<int>(std::min<std::int64_t>(plan_.certificate.tensor_parallel, region->units));
    while (shards > 1 && !region->admits(shards)) --shards;
    return shards > 1 ? cost_of_shard(whole, model_.graph, costs_, atom, count, *region, shards) : whole;
  }

  static constexpr double kRounded = 1 + 1e-9;

  const StatedPlan& stated_;
  const ModelProfile& model_;
  const Plan& plan_;
  const M& costs_;
  std::vector<NodeId> counted_;
  bool once_ = false;  // one micro-batch only
};

}  // namespace autopar::verify
