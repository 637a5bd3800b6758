#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <autopar/cost/concepts.hpp>
#include <autopar/cost/model_profile.hpp>
#include <autopar/cost/overlap.hpp>
#include <autopar/plan/check/regathered.hpp>
#include <autopar/plan/check/stated_plan.hpp>

namespace autopar::detail {

/// Costs of a plan's stages under its ZeRO level, with what they recompute; cached.
///
/// ZeRO 1 and above: gradients are reduce-scattered, which is half of an all-reduce, and every rank updates its shard.
/// Under 1 and 2 the other half, an all-gather, follows the update. Under 2 and 3 every backward reduce-scatters. Under
/// 3 every forward and backward also gathers parameters. Both go bucket by bucket. A compute action waits for the first
/// gather and the last sum, or takes as long as all of them if that is longer. On CPUs it takes as long as everything
/// together. If atoms read copies of parameters, the copies are gathered. A stage with one rank shards nothing.
/// Gradients of parameters tied across stages go to every holder. What is offloaded is updated on the host, with copies
/// there and back.
/// @source Rajbhandari et al., "ZeRO", SC 2020
template <class M>
class CheckedCosts {
 public:
  explicit CheckedCosts(const StatedPlan& stated, const M& costs) : stated_(stated), costs_(costs) {}

  [[nodiscard]] const NodeCost& of_stage(int stage, std::int64_t samples) const {
    const auto [entry, added] = known_.try_emplace({stage, samples});
    if (added) entry->second = worked_out(stage, samples);
    return entry->second;
  }
  [[nodiscard]] NodeCost of_atom(NodeId atom, std::int64_t samples) const {
    NodeCost cost = costs_.node(stated_.model().graph, atom, static_cast<double>(samples));
    const TensorRegion* region = stated_.slices_of(atom);
    if (region == nullptr) return cost;
    const std::int64_t count = stated_.shards(stated_.stage_of(atom));
    const double most = std::ceil(static_cast<double>(region->units) / static_cast<double>(count));
    const double part = most / static_cast<double>(region->units);
    double forward = part, backward = part;
    if constexpr (CostsShards<M, Graph<OpProfile, ValueProfile>>) {
      const ShardShare share = costs_.shard_share(stated_.model().graph, atom, static_cast<double>(samples), part);
      forward = share.forward;
      backward = share.backward;
    }
    const AtomMemory& on_each = stated_.model().graph[atom].on_each_shard;
    const auto held = [&](Bytes all, const Affine& each_holds) {
      const double each = std::max(0.0, each_holds.per_sample * static_cast<double>(samples) + each_holds.fixed);
      return Bytes(static_cast<std::int64_t>(std::ceil(each + (static_cast<double>(all.value()) - each) * part)));
    };
    return {cost.forward * forward,
            cost.backward * backward,
            held(cost.saved, on_each.saved),
            held(cost.workspace, on_each.workspace),
            cost.backward_weight * backward,
            held(cost.deferred_weight, on_each.deferred_weight),
            held(cost.forward_workspace, on_each.forward_workspace)};
  }
  /// Bytes that an atom holds permanently.
  [[nodiscard]] Bytes resident(NodeId atom) const {
    if constexpr (HasResidentBytes<M, Graph<OpProfile, ValueProfile>>)
      return costs_.resident(stated_.model().graph, atom);
    return {};
  }
  [[nodiscard]] Seconds transfer(Bytes bytes, Rank from, Rank to) const { return costs_.transfer(bytes, from, to); }
  /// The sum of one bucket of gradients.
  [[nodiscard]] Seconds sum(const GradientSum& group, Bytes bytes) const {
    if (bytes == Bytes(0) && level() >= 2 && group.stage >= 0) return {};  // summed within backwards
    std::vector<Rank> members;
    for (const std::size_t rank : group.ranks) members.push_back(Rank::of(rank));
    const Seconds whole = costs_.all_reduce(bytes, members);
    return level() > 0 && group.stage >= 0 ? whole * 0.5 : whole;
  }
  /// The optimizer step of a stage, and what its ranks gather after it.
  [[nodiscard]] Seconds update(int stage) const {
    const std::int64_t bytes = stated_.trainable_bytes(stage).value(),
                       parts = level() > 0 ? stated_.replicas(stage) : 1;
    const Seconds own = step_of(Bytes((bytes + parts - 1) / parts));
    return level() == 1 || level() == 2 ? own + half_of_a_sum(stage, gathered_bytes(stage)) : own;
  }

 private:
  /// An optimizer step on so many bytes; on the host it takes at least as long as on the device.
  [[nodiscard]] Seconds step_of(Bytes bytes) const {
    const double factor = stated_.plan().optimizer_state_factor;
    const Seconds here = costs_.update(bytes, factor);
    if constexpr (UpdatesOnHost<M>) {
      if (stated_.plan().offload == Offload::kOptimizer) return std::max(here, costs_.offloaded_update(bytes, factor));
    }
    return here;
  }
  [[nodiscard]] int level() const { return stated_.plan().zero; }

  [[nodiscard]] Seconds half_of_a_sum(int stage, Bytes bytes) const {
    if (stated_.replicas(stage) < 2 || bytes == Bytes(0)) return {};
    return costs_.all_reduce(bytes, stated_.holders_of_shard(stage, 0)) * 0.5;
  }

  [[nodiscard]] Bytes gathered_bytes(int stage) const {
    Bytes sum{};
    for (const ParameterId id : stated_.parameters(stage)) {
      const ParameterProfile& parameter = stated_.held(id);
      if (parameter.trainable) sum += parameter.copy > Bytes(0) ? parameter.copy : parameter.bytes;
    }
    return sum;
  }

  /// What the shards of a replica exchange in one direction of a region, for the slowest replica.
  [[nodiscard]] Seconds exchanged(int stage, const Affine& bytes, int calls, std::int64_t samples) const {
    if (calls == 0) return {};
    const double each = std::ceil(std::max(0.0, bytes.at(static_cast<double>(samples))) / calls);
    const auto& ranks = stated_.ranks_of(stage);
    const auto count = static_cast<std::size_t>(stated_.shards(stage));
    Seconds longest{};
    for (std::size_t first = 0; first < ranks.size(); first += count) {
      const std::vector<Rank> replica(ranks.begin() + static_cast<std::ptrdiff_t>(first),
                                      ranks.begin() + static_cast<std::ptrdiff_t>(first + count));
      longest = std::max(longest, costs_.all_reduce(Bytes(static_cast<std::int64_t>(each)), replica));
    }
    return longest * static_cast<double>(calls);
  }

  [[nodiscard]] NodeCost worked_out(int stage, std::int64_t samples) const {
    NodeCost sum;
    const StagePlan& plan = stated_.plan().stages[static_cast<std::size_t>(stage)];
    std::set<NodeId> recomputed;
    for (const auto& segment : plan.recomputed) recomputed.insert(segment.begin(), segment.end());
    for (const NodeId atom : plan.atoms) {
      const Bytes totals = stated_.model().graph[atom].totals;  // added up by the replicas, in both directions
      const bool adds_up = totals > Bytes(0) && plan.mesh.replicas() > 1;
      const Seconds adding = adds_up ? costs_.all_reduce(totals, plan.mesh.replica_group(0)) : Seconds{};
      const NodeCost one = of_atom(atom, samples);
      sum.forward += one.forward + adding;
      sum.backward += one.backward + adding;
      if (recomputed.contains(atom)) {
        sum.backward += one.forward;
        continue;
      }
      sum.backward_weight += one.backward_weight;  // nothing of what is recomputed is deferred
    }
    for (const TensorRegion* region : stated_.sliced_regions(stage)) {
      const bool again = std::any_of(region->atoms.begin(), region->atoms.end(),
                                     [&](NodeId atom) { return recomputed.contains(atom); });
      const Seconds forward = exchanged(stage, region->forward, region->forward_calls, samples);
      sum.forward += forward;
      sum.backward += exchanged(stage, region->backward, region->backward_calls, samples);
      if (again) sum.backward += forward;
    }
    if (level() < 2) return sum;
    const Bytes all = stated_.trainable_bytes(stage), gathered = gathered_bytes(stage);
    const Bytes bucket = std::min(all, Bytes(stated_.unit_limit()));
    const Seconds summed = half_of_a_sum(stage, all), last = half_of_a_sum(stage, bucket);
    const bool at_once = computes_while_exchanging(costs_);
    if (level() == 2) {
      sum.backward = at_once ? std::max(sum.backward + last, summed) : sum.backward + summed;
      return sum;
    }
    const double part = all > Bytes(0) ? static_cast<double>(gathered.value()) / static_cast<double>(all.value()) : 1;
    const Bytes of_bucket(static_cast<std::int64_t>(static_cast<double>(bucket.value()) * part));
    const Seconds brought = half_of_a_sum(stage, gathered), first = half_of_a_sum(stage, of_bucket);
    sum.forward = at_once ? std::max(sum.forward + first, brought) : sum.forward + brought;
    const Seconds once_more = half_of_a_sum(stage, Bytes(checked_regathered(stated_, stage).once_more));
    const Seconds sent = brought + once_more + summed;
    sum.backward = at_once ? std::max(sum.backward + (first + last), sent) : sum.backward + sent;
    return sum;
  }

  const StatedPlan& stated_;
  const M& costs_;
  mutable std::map<std::pair<int, std::int64_t>, NodeCost> known_;
};

}  // namespace autopar::detail
