#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <autopar/cost/concepts.hpp>
#include <autopar/cost/contention.hpp>
#include <autopar/cost/model_profile.hpp>
#include <autopar/cost/tensor_regions.hpp>
#include <autopar/plan/verify/stated_plan.hpp>

namespace autopar::verify {

/// What a recomputed segment of a stage gathers under ZeRO 3 and no other atom reads: it keeps up to 256 MiB.
struct Regathered {
  Bytes kept{};       ///< from its second forward until its gradients are made
  Bytes once_more{};  ///< resharded after the second forward, and gathered again
};
[[nodiscard]] inline Regathered regathered(const StatedPlan& stated, std::size_t stage,
                                           const std::vector<NodeId>& segment) {
  constexpr Bytes kKept{256 << 20};
  if (stated.splits_backwards()) return {};
  Bytes alone{};
  for (const auto& [id, readers] : stated.stages[stage].trained) {
    const ParameterProfile& parameter = stated.model.parameters[id.index()];
    const auto is_inside = [&](NodeId reader) { return std::ranges::find(segment, reader) != segment.end(); };
    if (parameter.highest_zero >= 3 && std::ranges::all_of(readers, is_inside)) alone += parameter.computed_with();
  }
  return {std::min(alone, kKept), alone - std::min(alone, kKept)};
}

/// Costs of a plan's stages under its ZeRO level, with what they recompute; cached.
///
/// ZeRO 1 and above: gradients are reduce-scattered, which is half of an all-reduce, and every rank updates its shard.
/// A sum takes as long as what is sent for it. Under 1 and 2 the other half, an all-gather of what stages compute with,
/// follows the update. Under 2 and 3 every backward reduce-scatters. Under 3 every forward and backward also
/// all-gathers. Gradients of parameters tied across stages go to every holder. What is offloaded is updated on the
/// host, with copies there and back.
/// @source Rajbhandari et al., "ZeRO", SC 2020
template <class M>
class StatedCosts {
 public:
  StatedCosts(const StatedPlan& stated, const M& costs) : stated_(stated), costs_(costs), zero_(stated.plan.zero) {}

  [[nodiscard]] const NodeCost& of_stage(std::size_t stage, std::int64_t samples) const {
    const auto [entry, added] = known_.try_emplace({stage, samples});
    if (added) entry->second = with_collectives(stage, samples);
    return entry->second;
  }
  [[nodiscard]] NodeCost of_atom(NodeId atom, std::int64_t samples) const {
    const auto& graph = stated_.model.graph;
    const auto count = static_cast<double>(samples);
    const NodeCost whole = costs_.node(graph, atom, count);
    const TensorRegion* region = stated_.sliced_in[atom.index()];
    if (region == nullptr) return whole;
    const int shards = stated_.pipeline.stages[stated_.stage_of[atom.index()]].tensor();
    return cost_of_shard(whole, graph, costs_, atom, count, *region, shards);
  }
  /// Bytes that an atom holds permanently.
  [[nodiscard]] Bytes resident(NodeId atom) const {
    if constexpr (HasResidentBytes<M, Graph<OpProfile, ValueProfile>>)
      return costs_.resident(stated_.model.graph, atom);
    return {};
  }
  /// @param action  the message's send or its receive
  [[nodiscard]] Seconds message(const Action& action, Rank from, Rank to) const {
    const StatedChannel& size = stated_.channels[static_cast<std::size_t>(action.channel)];
    const Affine& bytes = action.flow == Flow::kValue ? size.value : size.gradient;
    return costs_.transfer(bytes_of(bytes, action.samples.size()), from, to);
  }
  /// The sum of a bucket of gradients at the end of a call.
  [[nodiscard]] Seconds sum(const ReduceGroup& group, Bytes bytes) const {
    if (bytes == Bytes(0) && zero_ >= 2 && group.stage.valid()) return {};  // summed within backwards
    return costs_.all_reduce(bytes, group.ranks) * (zero_ > 0 && group.stage.valid() ? 0.5 : 1);
  }
  /// What the computation of a stage and the exchanges among its replicas cost each other.
  [[nodiscard]] Contention contention(std::size_t stage) const {
    const Mesh& mesh = stated_.pipeline.stages[stage];
    return mesh.replicas() < 2 ? kNoContention : contention_of(costs_, mesh.replica_group(0));
  }
  /// What each second of a message adds to the computation of its ranks.
  [[nodiscard]] double message_delay() const {
    if constexpr (DelaysByMessages<M>) return costs_.message_delay();
    return 0;
  }
  /// The optimizer step of a stage, and what its ranks gather after it.
  [[nodiscard]] Seconds update(std::size_t stage) const {
    const double factor = stated_.plan.optimizer_state_factor;
    const StatedStage& own = stated_.stages[stage];
    const Bytes bytes = part_of(own.trained_bytes, zero_ > 0 ? stated_.pipeline.stages[stage].replicas() : 1);
    Seconds step = costs_.update(bytes, factor);
    if constexpr (UpdatesOnHost<M>) {
      if (stated_.plan.offload == Offload::kOptimizer) step = std::max(step, costs_.offloaded_update(bytes, factor));
    }
    const auto& [once, per_backward, per_gather] = passes(stage);
    step += once + (zero_ == 1 || zero_ == 2 ? per_gather : Seconds{});
    return zero_ == 1 || zero_ == 2 ? step + all_reduce(stage, own.computed_with) * 0.5 : step;
  }

 private:
  /// Seconds in which a rank's memory moves gradients and parameters of a stage. Whole gradients are read when another
  /// micro-batch adds to them. Of a replicated stage, buckets of whole gradients are zeroed once a step, and under ZeRO
  /// 1 the rank's part is copied. Gradients in shards: every backward zeroes buckets, adds gradients to them (three
  /// passes), and adds the rank's part to what it has. What is sent in half its bytes is cast, and comes to be added:
  /// twice a half, besides what is read before and written after. Before a gather, a rank casts its part of parameters
  /// that are computed with in another type.
  struct Passes {
    Seconds once{}, per_backward{}, per_gather{};
  };
  [[nodiscard]] Passes passes(std::size_t stage) const {
    Passes seconds;
    if constexpr (CostsPasses<M>) {
      const int replicas = stated_.pipeline.stages[stage].replicas();
      const StatedStage& own = stated_.stages[stage];
      const Bytes whole = own.trained_bytes * (stated_.plan.microbatches - 1);
      if (replicas < 2) seconds.once = costs_.passes(whole);
      if (replicas < 2) return seconds;
      const Bytes part = part_of(own.trained_bytes, replicas);
      const Bytes rounded = (own.trained_bytes - own.sent) * 2;
      const Seconds rounding = costs_.passes(rounded + rounded + Bytes(rounded.value() / replicas));
      if (zero_ == 0) seconds.once = costs_.passes(own.trained_bytes + whole) + rounding;
      if (zero_ == 1) seconds.once = costs_.passes(own.trained_bytes + whole + part + part) + rounding;
      if (zero_ >= 2) seconds.per_backward = costs_.passes(own.trained_bytes * 4 + part * 3) + rounding;
      if (own.trained_bytes != own.computed_with)
        seconds.per_gather = costs_.passes(part + part_of(own.computed_with, replicas));
    }
    return seconds;
  }
  /// Among the replicas of a stage, which are the same for each tensor shard.
  [[nodiscard]] Seconds all_reduce(std::size_t stage, Bytes bytes) const {
    const Mesh& mesh = stated_.pipeline.stages[stage];
    return mesh.replicas() < 2 || bytes == Bytes(0) ? Seconds{} : costs_.all_reduce(bytes, mesh.replica_group(0));
  }
  /// What the shards of a replica exchange in one direction of a region, for the slowest replica.
  [[nodiscard]] Seconds exchanged(const Mesh& mesh, const Affine& bytes, int calls, std::int64_t samples) const {
    if (calls == 0) return {};
    const Bytes each = bytes_of_call(bytes, calls, samples);
    Seconds longest{};
    for (int q = 0; q < mesh.replicas(); ++q)
      longest = std::max(longest, costs_.all_reduce(each, mesh.tensor_group(q)));
    return longest * static_cast<double>(calls);
  }

  /// What a stage computes and what its tensor shards exchange. Nothing of what is recomputed is deferred.
  [[nodiscard]] NodeCost computed(std::size_t stage, std::int64_t samples) const {
    const StagePlan& plan = stated_.plan.stages[stage];
    std::set<NodeId> recomputed;
    for (const auto& segment : plan.recomputed) recomputed.insert(segment.begin(), segment.end());
    NodeCost sum;
    std::map<const TensorRegion*, bool> regions;  // whether some of it is recomputed
    for (const NodeId atom : plan.atoms) {
      const NodeCost one = of_atom(atom, samples);
      const Seconds totals = all_reduce(stage, stated_.model.graph[atom].totals);
      const bool again = recomputed.contains(atom);
      sum.forward += one.forward + totals;
      sum.backward += one.backward + totals + (again ? one.forward : Seconds{});
      sum.backward_weight += again ? Seconds{} : one.backward_weight;
      if (const TensorRegion* region = stated_.sliced_in[atom.index()]) regions[region] |= again;
    }
    for (const auto& [region, again] : regions) {
      const Seconds forward = exchanged(plan.mesh, region->forward, region->forward_calls, samples);
      sum.forward += forward;
      sum.backward += exchanged(plan.mesh, region->backward, region->backward_calls, samples);
      sum.backward += again ? forward : Seconds{};
    }
    return sum;
  }

  /// Adds what is gathered and summed within compute actions, bucket by bucket. They wait for the first gather and the
  /// last sum. What lies between runs beside the computation, and each delays the other.
  [[nodiscard]] NodeCost with_collectives(std::size_t stage, std::int64_t samples) const {
    NodeCost cost = computed(stage, samples);
    if (zero_ < 2) return cost;
    const auto half = [&](Bytes bytes) { return all_reduce(stage, bytes) * 0.5; };
    const Contention both = contention(stage);
    const auto beside = [&](Seconds compute, Seconds exposed, Seconds all) {
      const Seconds other = std::max(Seconds{}, all - exposed);
      return exposed + std::max(compute + other * both.of_computing, other + compute * both.of_exchange);
    };
    const Bytes trained = stated_.stages[stage].trained_bytes, computed_with = stated_.stages[stage].computed_with;
    const Bytes unit = std::min(trained, stated_.unit_limit), sent = stated_.stages[stage].sent;
    const auto of_unit = [&](Bytes all) {
      const double part = trained > Bytes(0) ? all / trained : 1;
      return Bytes(static_cast<std::int64_t>(static_cast<double>(unit.value()) * part));
    };
    Seconds first{}, gathered{}, again{};
    if (zero_ == 3) {
      first = half(of_unit(computed_with));
      gathered = half(computed_with);
      Bytes once_more{};
      for (const auto& segment : stated_.plan.stages[stage].recomputed)
        once_more += regathered(stated_, stage, segment).once_more;
      again = half(once_more);
    }
    const Passes over_memory = passes(stage);
    cost.forward += zero_ == 3 ? over_memory.per_gather : Seconds{};
    cost.backward += over_memory.per_backward + (zero_ == 3 ? over_memory.per_gather : Seconds{});
    cost.forward = beside(cost.forward, first, gathered);
    cost.backward = beside(cost.backward, first + half(of_unit(sent)), gathered + again + half(sent));
    return cost;
  }

  const StatedPlan& stated_;
  const M& costs_;
  int zero_;
  mutable std::map<std::pair<std::size_t, std::int64_t>, NodeCost> known_;
};

}  // namespace autopar::verify
