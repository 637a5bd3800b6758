#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <autopar/plan/memory/zero_memory.hpp>
#include <autopar/plan/request.hpp>
#include <autopar/schedule/simulate.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar {

namespace detail {

/// Bytes of the trainable parameters that a stage reads, of what it computes with in their place, and of what is sent
/// for their gradients.
struct TrainedBytes {
  Bytes trained{}, computed_with{}, sent{};
};
[[nodiscard]] inline std::vector<TrainedBytes> trained_by_stage(const Workload& work, const Staging& staging,
                                                                const BucketPolicy& buckets) {
  std::vector<TrainedBytes> bytes(staging.replicas.size());
  const ReadingStages readers = stages_of_parameters(work, staging);
  for (std::size_t p = 0; p < work.parameters.size(); ++p) {
    const ParameterProfile& parameter = work.parameters[p];
    readers.for_each(p, [&](int stage) {
      TrainedBytes& own = bytes[static_cast<std::size_t>(stage)];
      own.trained += parameter.bytes;
      own.computed_with += parameter.computed_with();
      own.sent += buckets.sent(parameter.bytes, parameter.elements);
    });
  }
  return bytes;
}

/// A lower bound on an update under all memory optimizations that the constraints allow.
[[nodiscard]] inline Seconds least_update(const Workload& work, const Constraints& constraints, Bytes bytes) {
  const double factor = constraints.optimizer_state_factor;
  const bool always = constraints.offloads.front() == Offload::kOptimizer;
  return always ? work.offloaded_update(bytes, factor) : work.update(bytes, factor);
}

/// A reduce-scatter and an all-gather are the two halves of an all-reduce. Gathered is what stages compute with, which
/// may be of a smaller element type.
inline constexpr double kHalfOfASum = 0.5;

}  // namespace detail

/// Costs of one staging as the simulator asks for them.
class StagingCosts {
 public:
  StagingCosts(const Workload& work, const Staging& staging, const SizedPipeline& sized,
               const MemoryOptimizations& optimizations = {})
      : work_(work),
        sized_(sized),
        zero_(optimizations.zero),
        offload_(optimizations.offload),
        microbatches_(staging.microbatches),
        whole_backwards_(keeps_backwards_whole(staging.schedule)),
        nodes_(nodes_by_stage(staging)),
        recomputed_(optimizations.recomputed),
        parameters_(detail::trained_by_stage(work, staging, sized.buckets)),
        known_(nodes_.size()) {
    recomputed_.resize(nodes_.size());
    if (zero_ >= 2) unit_size_ = sized.buckets.unit_size(zero_, largest_trained(work));
    find_exchanges(staging);
  }

  [[nodiscard]] Seconds forward(StageId stage, std::int64_t samples) const { return at(stage, samples).forward; }
  [[nodiscard]] Seconds backward(StageId stage, std::int64_t samples) const { return at(stage, samples).backward; }
  [[nodiscard]] Seconds backward_input(StageId stage, std::int64_t samples) const {
    return at(stage, samples).backward - at(stage, samples).backward_weight;
  }
  [[nodiscard]] Seconds backward_weight(StageId stage, std::int64_t samples) const {
    return at(stage, samples).backward_weight;
  }
  [[nodiscard]] Seconds message(Rank from, const Action& action) const {
    const auto& size = sized_.channels[static_cast<std::size_t>(action.channel)];
    return work_.transfer(
        detail::bytes_at(action.flow == Flow::kValue ? size.value : size.gradient, action.samples.size()), from,
        action.peer);
  }
  [[nodiscard]] Seconds reduce(const Action& action) const {
    const auto group = static_cast<std::size_t>(action.group);
    const Bytes bytes = summed_at_end(group)[static_cast<std::size_t>(action.bucket)];
    if (sums_.empty()) sums_.resize(sized_.pipeline.groups.size(), {Bytes(-1), {}});
    auto& [of_bytes, sum] = sums_[group];  // neighbouring buckets are often equal
    if (of_bytes != bytes) {
      sum = sum_of(group, bytes);
      of_bytes = bytes;
    }
    return sum;
  }
  [[nodiscard]] double message_delay() const { return work_.message_delay; }
  /// A stage's last backward, which takes so long alone, while its gradients are summed. The first bucket fills alone.
  [[nodiscard]] Seconds beside_reductions(StageId stage, Seconds alone) const {
    const auto group = std::ranges::find(sized_.pipeline.groups, stage, &ReduceGroup::stage);
    const Contention both = with_last_sums(contention(stage));
    if (both == kNoContention || group == sized_.pipeline.groups.end()) return alone;
    const Seconds delay = both.of_computing * sums_before_the_last(stage);
    const double rate = both.computing_rate();
    if (rate == 0) return alone + delay;
    const Seconds at_once = alone * (1 - 1.0 / group->buckets);
    return alone + std::min(delay, at_once * (1 / rate - 1));
  }
  /// A sum by ranks that still compute for so long.
  [[nodiscard]] Seconds reduce_beside(const Action& action, Seconds computing) const {
    const ReduceGroup& group = sized_.pipeline.groups[static_cast<std::size_t>(action.group)];
    return sums_beside(group.stage, reduce(action), computing);
  }
  /// Sums of a stage's gradients that take `alone` alone, likewise. What sends nothing waits for nobody.
  [[nodiscard]] Seconds sums_beside(StageId stage, Seconds alone, Seconds computing) const {
    if (alone == Seconds{}) return alone;
    const double rate = with_last_sums(contention(stage)).exchange_rate();
    const Seconds delayed = alone + (1 - rate) * computing;
    return rate > 0 ? std::min(alone / rate, delayed) : delayed;
  }
  /// Bytes that are summed at the end of a call, by bucket.
  [[nodiscard]] const std::vector<Bytes>& summed_at_end(std::size_t group) const {
    return sized_.summed_at_end(group, zero_);
  }
  /// Seconds to sum gradients over a group at the end of a call, for which so many bytes are sent.
  [[nodiscard]] Seconds sum_of(std::size_t group, Bytes bytes) const {
    if (bytes == Bytes(0) && sized_.sums_in_backwards(group, zero_)) return {};
    const Seconds sum = work_.all_reduce(bytes, sized_.pipeline.groups[group].ranks);
    return in_shards(group) ? sum * detail::kHalfOfASum : sum;
  }
  /// Whether all compute actions that these costs were asked for take as long under other costs.
  [[nodiscard]] bool computes_last_as_long(const StagingCosts& others) const {
    for (std::size_t s = 0; s < known_.size(); ++s) {
      for (const Known& known : known_[s]) {
        if (known != others.at(StageId::of(s), known.samples)) return false;
      }
      const StageId stage = StageId::of(s);
      const bool contends = !hidden_.empty() && hidden_[s];
      if (contends && hidden_[s] != others.sums_before_the_last(stage)) return false;
    }
    return true;
  }
  /// The optimizer step, with copies to and from the host if it is offloaded. And the all-gather that must follow
  /// before the next step's first forward.
  [[nodiscard]] Seconds update(StageId stage, double state_factor) const {
    const auto& parameters = parameters_[stage.index()];
    const int replicas = sized_.pipeline.stages[stage.index()].replicas();
    const Bytes updated = detail::updated_bytes(parameters.trained, zero_, replicas);
    const Seconds own = (offload_ == Offload::kOptimizer ? work_.offloaded_update(updated, state_factor)
                                                         : work_.update(updated, state_factor)) +
                        passes_around_update(stage);
    return zero_ == 1 || zero_ == 2 ? own + half_of_a_sum(stage, parameters.computed_with) : own;
  }

 private:
  /// Gradients of parameters tied across stages go to every holder unsharded, because each stage has its own shards.
  [[nodiscard]] bool in_shards(std::size_t group) const {
    return zero_ > 0 && sized_.pipeline.groups[group].stage.valid();
  }

  struct Known {
    std::int64_t samples;
    Seconds forward, backward, backward_weight;
    friend bool operator==(const Known&, const Known&) = default;
  };
  [[nodiscard]] const Known& at(StageId stage, std::int64_t samples) const {
    auto& row = known_[stage.index()];
    for (const Known& known : row) {
      if (known.samples == samples) return known;
    }
    Known sum{samples, {}, {}, {}};
    const auto& costs = work_.node_costs(samples);
    for (const NodeId node : nodes_[stage.index()]) {
      const Seconds totals = sum_of_replicas(stage, work_.graph[node].totals);
      sum.forward += costs[node.index()].forward + totals;
      sum.backward += costs[node.index()].backward + totals;
      sum.backward_weight += costs[node.index()].backward_weight;
    }
    for (const Exchange& exchange : exchanges_) {
      if (exchange.stage != stage) continue;
      const Seconds forward = exchanged(exchange, exchange.region->forward, exchange.region->forward_calls, samples);
      sum.forward += forward;
      sum.backward += exchanged(exchange, exchange.region->backward, exchange.region->backward_calls, samples);
      if (exchange.is_recomputed) sum.backward += forward;
    }
    for (const auto& segment : recomputed_[stage.index()]) {
      for (const NodeId node : segment) {
        sum.backward += costs[node.index()].forward;
        sum.backward_weight = std::max(Seconds{}, sum.backward_weight - costs[node.index()].backward_weight);
      }
    }
    if (zero_ >= 2) add_zero(stage, sum);
    return row.emplace_back(sum);
  }

  /// Of its computation with exchanges among its replicas.
  [[nodiscard]] Contention contention(StageId stage) const {
    if (contention_.empty()) contention_.resize(nodes_.size());
    auto& own = contention_[stage.index()];
    if (!own) {
      const Mesh& mesh = sized_.pipeline.stages[stage.index()];
      own = mesh.replicas() < 2 ? kNoContention : work_.contention(mesh.replica_group(0));
    }
    return *own;
  }
  /// Seconds of a stage's gradient sums at the end of a call, but for the last bucket.
  [[nodiscard]] Seconds sums_before_the_last(StageId stage) const {
    if (hidden_.empty()) hidden_.resize(nodes_.size());
    auto& hidden = hidden_[stage.index()];
    if (hidden) return *hidden;
    hidden = Seconds{};
    const auto& groups = sized_.pipeline.groups;
    const auto own = std::ranges::find(groups, stage, &ReduceGroup::stage);  // of the first tensor shard
    const auto group = static_cast<std::size_t>(own - groups.begin());
    const auto& buckets = summed_at_end(group);
    for (std::size_t b = 0; b + 1 < buckets.size(); ++b) *hidden += sum_of(group, buckets[b]);
    return *hidden;
  }

  /// Gathers and sums run beside the computation, bucket by bucket. The computation waits for the first gather, and the
  /// last sum waits for the computation. Between them both contend.
  void add_zero(StageId stage, Known& sum) const {
    const auto [trained, computed_with, sent] = parameters_[stage.index()];
    const Bytes unit = std::min(trained, unit_size_), gathered = zero_ >= 3 ? computed_with : Bytes(0);
    const Seconds summing = half_of_a_sum(stage, sent);
    const Seconds last = half_of_a_sum(stage, detail::in_proportion(unit, sent, trained));
    const Seconds gathering = half_of_a_sum(stage, gathered);
    const Seconds first = half_of_a_sum(stage, detail::in_proportion(unit, gathered, trained));
    const Seconds again = half_of_a_sum(stage, regathered_bytes(stage));
    const Contention both = contention(stage);
    const auto beside = [&](Seconds computing, Seconds exposed, Seconds exchanged) {
      return exposed + both.together(computing, std::max(Seconds{}, exchanged - exposed));
    };
    const int replicas = sized_.pipeline.stages[stage.index()].replicas();
    if (replicas > 1) {
      // Gradients are added into zeroed buckets, and the rank's part of the sums to those of earlier micro-batches.
      sum.backward +=
          work_.passes(4 * trained + 3 * detail::updated_bytes(trained, zero_, replicas)) + passes_to_round(stage);
    }
    if (zero_ >= 3) {
      sum.forward += passes_to_cast(stage);
      sum.backward += passes_to_cast(stage);
    }
    sum.forward = beside(sum.forward, first, gathering);
    sum.backward = beside(sum.backward, first + last, gathering + again + summing);
  }
  /// A rank casts its part of parameters that stages compute with in another element type, before it is gathered.
  [[nodiscard]] Seconds passes_to_cast(StageId stage) const {
    const auto& [trained, computed_with, sent] = parameters_[stage.index()];
    const int replicas = sized_.pipeline.stages[stage.index()].replicas();
    if (replicas < 2 || trained == computed_with) return {};
    return work_.passes(detail::updated_bytes(trained, zero_, replicas) +
                        detail::updated_bytes(computed_with, zero_, replicas));
  }
  /// What is sent in half its bytes is cast before; it is read, added and written in whole bytes after.
  [[nodiscard]] Seconds passes_to_round(StageId stage) const {
    const Bytes rounded = 2 * (parameters_[stage.index()].trained - parameters_[stage.index()].sent);
    const int replicas = sized_.pipeline.stages[stage.index()].replicas();
    return replicas < 2 ? Seconds{} : work_.passes(2 * rounded + Bytes(rounded.value() / replicas));
  }
  /// Passes over memory once a step: each micro-batch but the first reads the sums to which it adds gradients. Replicas
  /// add them into zeroed buckets, of which a rank keeps a copy of its part.
  [[nodiscard]] Seconds passes_around_update(StageId stage) const {
    const Bytes trained = parameters_[stage.index()].trained, added_to = trained * (microbatches_ - 1);
    const int replicas = sized_.pipeline.stages[stage.index()].replicas();
    if (replicas < 2) return work_.passes(added_to);
    if (zero_ == 0) return work_.passes(added_to + trained) + passes_to_round(stage);
    if (zero_ == 1) {
      return work_.passes(added_to + trained + 2 * detail::updated_bytes(trained, 1, replicas)) +
             passes_to_round(stage) + passes_to_cast(stage);
    }
    return zero_ == 2 ? passes_to_cast(stage) : Seconds{};
  }

  /// A region that shards of a stage compute together.
  struct Exchange {
    StageId stage;
    const TensorRegion* region;
    bool is_recomputed;  ///< some of it, and so are its exchanges
  };
  void find_exchanges(const Staging& staging) {
    for (std::size_t r = 0; r < work_.region_shards.size(); ++r) {
      if (work_.region_shards[r] == 1) continue;
      const TensorRegion& region = work_.regions[r];
      const StageId stage(staging.stage_of[region.atoms.front().index()]);
      const auto is_inside = [&](NodeId node) { return std::ranges::binary_search(region.atoms, node); };
      const auto meets_it = [&](const auto& segment) { return std::ranges::any_of(segment, is_inside); };
      const bool again = std::ranges::any_of(recomputed_[stage.index()], meets_it);
      exchanges_.push_back({stage, &region, again});
    }
  }
  /// The exchange of the shards of one replica, the slowest.
  [[nodiscard]] Seconds exchanged(const Exchange& exchange, const Affine& bytes, int calls,
                                  std::int64_t samples) const {
    if (calls == 0) return {};
    const Bytes each = bytes_of_call(bytes, calls, samples);
    const auto [most, is_new] = all_reduces_.try_emplace({exchange.stage, each});
    const Mesh& mesh = sized_.pipeline.stages[exchange.stage.index()];
    for (int q = 0; is_new && q < mesh.replicas(); ++q)
      most->second = std::max(most->second, work_.all_reduce(each, mesh.tensor_group(q)));
    return most->second * static_cast<double>(calls);
  }

  /// Bytes that recomputed segments reshard before their backwards and gather again.
  [[nodiscard]] Bytes regathered_bytes(StageId stage) const {
    if (zero_ < 3 || recomputed_[stage.index()].empty() || !whole_backwards_) return {};
    const detail::Regathered read(work_, nodes_[stage.index()]);
    Bytes again{};
    for (const auto& segment : recomputed_[stage.index()]) again += read.of(segment).once_more;
    return again;
  }

  /// Over the replicas of the first tensor shard; other shards are similar.
  [[nodiscard]] Seconds sum_of_replicas(StageId stage, Bytes bytes) const {
    const Mesh& mesh = sized_.pipeline.stages[stage.index()];
    if (bytes <= Bytes(0) || mesh.replicas() < 2) return {};
    return work_.all_reduce(bytes, mesh.replica_group(0));
  }
  [[nodiscard]] Seconds half_of_a_sum(StageId stage, Bytes bytes) const {
    return sum_of_replicas(stage, bytes) * detail::kHalfOfASum;
  }

  const Workload& work_;
  const SizedPipeline& sized_;
  int zero_;
  Offload offload_;
  int microbatches_;
  bool whole_backwards_;
  Bytes unit_size_{};  // of what is summed, and gathered, within compute actions
  std::vector<std::vector<NodeId>> nodes_;
  StageSegments recomputed_;
  std::vector<detail::TrainedBytes> parameters_;  // by stage
  std::vector<Exchange> exchanges_;
  mutable std::vector<std::vector<Known>> known_;                     // by stage; a handful of different shares
  mutable std::vector<std::optional<Contention>> contention_;         // by stage
  mutable std::vector<std::optional<Seconds>> hidden_;                // by stage, of gradient sums
  mutable std::vector<std::pair<Bytes, Seconds>> sums_;               // the last of each group
  mutable std::map<std::pair<StageId, Bytes>, Seconds> all_reduces_;  // of tensor shards: layers exchange as much
};
static_assert(SplitBackwardCosts<StagingCosts> && ContendingCosts<StagingCosts>);

}  // namespace autopar
