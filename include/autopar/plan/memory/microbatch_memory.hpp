#pragma once

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include <autopar/plan/memory/in_flight.hpp>
#include <autopar/plan/memory/optimizations.hpp>
#include <autopar/plan/memory/stage_memory.hpp>
#include <autopar/plan/model/pipeline_of.hpp>
#include <autopar/plan/model/slices.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar {

/// The stages of a staging on their ranks, at work on their largest slices.
struct SizedStages {
  const Workload& work;
  const Staging& staging;
  const SizedPipeline& sized;
  std::vector<std::int64_t> slice;         ///< [stage] samples that the largest replica runs at a time
  std::vector<std::vector<NodeId>> nodes;  ///< [stage] ascending
  std::vector<MicrobatchSamples> samples;  ///< [stage] what micro-batches in flight count by

  [[nodiscard]] const std::vector<NodeCost>& costs(std::size_t stage) const { return work.node_costs(slice[stage]); }
};
[[nodiscard]] inline std::vector<std::int64_t> largest_slices(const Staging& staging, const SliceTable& slices) {
  std::vector<std::int64_t> slice;
  for (const int replicas : staging.replicas)
    slice.push_back(slices.at(staging.microbatches, replicas, staging.stages()).largest);
  return slice;
}
/// Whether a stage's memory follows the order of compute actions: its first backward may come long after its first
/// forward, as several stages share ranks, or the order is synthesised. Not for replicas, whose gradients lie in
/// buckets.
[[nodiscard]] inline bool follows_order(const Staging& staging, std::size_t stage) {
  const bool is_synthesised = traits_of(staging.schedule).orders_in_plan && staging.microbatches > 1;
  return (is_synthesised || !staging.position_of.empty()) && staging.replicas[stage] == 1;
}
[[nodiscard]] inline std::vector<MicrobatchSamples> samples_in_flight(const Staging& staging,
                                                                      const SliceTable& slices) {
  std::vector samples(staging.replicas.size(), MicrobatchSamples(staging.microbatches));
  for (std::size_t s = 0; s < samples.size(); ++s) {
    if (!follows_order(staging, s)) continue;
    const std::vector<std::int64_t>& sizes = slices.microbatches(staging.microbatches);
    const bool alike = std::ranges::adjacent_find(sizes, std::ranges::not_equal_to{}) == sizes.end();
    if (!alike) samples[s] = MicrobatchSamples(sizes);
  }
  return samples;
}
/// @pre the arguments outlive it
[[nodiscard]] inline SizedStages sized_stages(const Workload& work, const Staging& staging, const SizedPipeline& sized,
                                              const SliceTable& slices) {
  return {work,
          staging,
          sized,
          largest_slices(staging, slices),
          nodes_by_stage(staging),
          samples_in_flight(staging, slices)};
}

/// The memory that one micro-batch takes in a stage. A stage runs its nodes in the order of the captured graph, and
/// their backwards in reverse. So while a node works, later nodes keep nothing, and earlier nodes have not made
/// parameter gradients yet.
struct MicrobatchMemory {
  Bytes kept{};             ///< from the forward until the backward
  Bytes deferred_weight{};  ///< of a split backward, from its first part until its second
  Bytes work{};     ///< beside `kept`, `copies` and all parameter gradients, of the node that takes most when it works;
                    ///< may be negative, as not all of these are there at once
  Bytes made{};     ///< parameter gradients that did not exist before
  Bytes copies{};   ///< parameter copies that its backward frees; counted with parameters
  Bytes summing{};  ///< as `work`, but beside those of `to_sum` that are there when the node works
  Bytes to_sum{};   ///< parameter gradients that replicas sum, if there are none before

  /// The first and the last of its nodes in the captured graph.
  NodeId first{std::numeric_limits<std::int32_t>::max()}, last{-1};

  /// Memory of a node that is not recomputed, parameters apart.
  [[nodiscard]] static MicrobatchMemory of(const WorkNode& node, const NodeCost& cost, ScheduleKind schedule) {
    const Bytes deferred = keeps_backwards_whole(schedule) ? Bytes(0) : cost.deferred_weight;
    return {.kept = cost.saved,
            .deferred_weight = deferred,
            .work = cost.workspace,
            .summing = cost.workspace,
            .first = node.members.front(),
            .last = node.members.back()};
  }

  /// Adds parameters that are unsharded while the node works.
  void add_gathered(Bytes bytes) {
    work += bytes;
    summing += bytes;
  }
  /// Adds a parameter gradient that replicas sum. A block of nodes makes it while the block works.
  void add_to_sum(Bytes gradient, bool of_block) {
    to_sum += gradient;
    if (of_block) summing += gradient;
  }

  /// Memory of both. If their nodes interleave, or if backwards are split, everything that both keep is there while
  /// either works.
  [[nodiscard]] MicrobatchMemory with(const MicrobatchMemory& next, ScheduleKind schedule) const {
    const bool in_turn = last < next.first && keeps_backwards_whole(schedule);
    const Bytes gone = in_turn ? next.kept + next.copies : Bytes(0), to_come = in_turn ? made : Bytes(0);
    const Bytes made_before = in_turn ? Bytes(0) : to_sum;
    return {.kept = kept + next.kept,
            .deferred_weight = deferred_weight + next.deferred_weight,
            .work = std::max(work - gone, next.work - to_come),
            .made = made + next.made,
            .copies = copies + next.copies,
            .summing = std::max(summing + next.to_sum - gone, next.summing + made_before - to_come),
            .to_sum = to_sum + next.to_sum,
            .first = std::min(first, next.first),
            .last = std::max(last, next.last)};
  }
};

/// Whether parameter gradients take the place of activations as a stage's backward goes on. With one micro-batch and
/// one replica, no gradients remain from an earlier backward and none are in buckets. For stages that share no ranks.
[[nodiscard]] constexpr bool gradients_follow_activations(int microbatches, int replicas) {
  return microbatches == 1 && replicas == 1;
}
[[nodiscard]] inline bool gradients_follow_activations(const Staging& staging, std::size_t stage) {
  return staging.position_of.empty() && gradients_follow_activations(staging.microbatches, staging.replicas[stage]);
}

/// Whether replicas sum the gradients of a stage while activations go, and nothing was summed before.
[[nodiscard]] inline bool sums_follow_activations(const Staging& staging, std::size_t stage) {
  return staging.position_of.empty() && staging.microbatches == 1 && staging.replicas[stage] > 1 &&
         keeps_backwards_whole(staging.schedule);
}

/// Under ZeRO 3, the unsharded parameters beside the shards while each node of a stage works.
/// @param unsharded  of the stage @return empty at lower levels
[[nodiscard]] inline std::vector<Bytes> gathered_by_nodes(const Workload& work, const std::vector<NodeId>& nodes,
                                                          const Unsharded& unsharded) {
  if (unsharded.computed_with == Bytes(0)) return {};
  std::vector<Bytes> beside(nodes.size());  // the most that the nearest reader on either side reads
  const auto look = [&](std::size_t place, Bytes& nearest) {
    const WorkNode& node = work.graph[nodes[place]];
    beside[place] = std::max(beside[place], nearest);
    const Bytes most = node.largest_trained.of_all;
    if (node.members.size() > 1) beside[place] = std::max(beside[place], most);
    if (most > Bytes(0)) nearest = most;
  };
  Bytes before{}, after{};
  for (std::size_t i = 0; i < nodes.size(); ++i) look(i, before);
  for (std::size_t i = nodes.size(); i-- > 0;) look(i, after);
  std::vector<Bytes> gathered;
  gathered.reserve(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i)
    gathered.push_back(unsharded.gathered(work.graph[nodes[i]].largest_trained, beside[i]));
  return gathered;
}

/// The memory of each node of a stage, none of which is recomputed. If gradients follow activations, a node's backward
/// may be the first to make a parameter's gradient, which counts at its last reader. And it frees the parameter copies
/// that the call made. Gradients are larger than copies, so a forward, which makes all copies, takes less than the
/// backward. Otherwise gradients exist before, or replicas sum them in separate memory, in units that begin with a
/// gradient of theirs.
/// @param fixed  `fixed_memory` of the stage
[[nodiscard]] inline std::vector<MicrobatchMemory> nodes_apart(const SizedStages& stages, std::size_t stage,
                                                               const StageMemory& fixed) {
  const Workload& work = stages.work;
  const std::vector<NodeId>& nodes = stages.nodes[stage];
  const std::vector<NodeCost>& costs = stages.costs(stage);
  const ScheduleKind schedule = stages.staging.schedule;
  std::vector<MicrobatchMemory> out;
  out.reserve(nodes.size());
  for (const NodeId node : nodes) out.push_back(MicrobatchMemory::of(work.graph[node], costs[node.index()], schedule));
  const auto gathered = gathered_by_nodes(work, nodes, fixed.unsharded);
  for (std::size_t i = 0; i < gathered.size(); ++i) out[i].add_gathered(gathered[i]);
  const bool follow = gradients_follow_activations(stages.staging, stage);
  if (!follow && !sums_follow_activations(stages.staging, stage)) return out;
  std::vector<bool> read(work.parameters.size(), false);
  bool any_made = false;
  for (std::size_t i = nodes.size(); i-- > 0;) {
    for (const ParameterId id : work.graph[nodes[i]].parameters) {
      const ParameterProfile& parameter = work.parameters[id.index()];
      if (!parameter.trainable) continue;
      const bool is_first = !read[id.index()];
      read[id.index()] = true;
      any_made = true;
      if (is_first && follow) out[i].made += parameter.bytes;
      if (is_first && !follow) out[i].add_to_sum(parameter.bytes, work.graph[nodes[i]].members.size() > 1);
      if (follow && fixed.copies_go && parameter.copy_by_call) out[i].copies += parameter.copy;
    }
    if (!follow && any_made && fixed.unsharded.unit > Bytes(0))
      out[i].summing += std::max(fixed.unsharded.units_of(work.graph[nodes[i]].largest_trained), fixed.unsharded.unit);
  }
  return out;
}

namespace detail {

/// The memory of one micro-batch in a stage, as more and more of its segments are recomputed.
class StageMicrobatch {
 public:
  /// @param nodes     of the stage, ascending
  /// @param apart     `nodes_apart` @pre the other arguments outlive it
  /// @param gathered  `gathered_by_nodes`, in `apart`
  StageMicrobatch(const std::vector<NodeId>& nodes, const std::vector<NodeCost>& costs, ScheduleKind schedule,
                  const std::vector<MicrobatchMemory>& apart, std::vector<Bytes> gathered = {})
      : nodes_(&nodes),
        costs_(&costs),
        schedule_(schedule),
        gathered_(std::move(gathered)),
        leaves_(std::bit_ceil(nodes.size())),
        tree_(2 * leaves_) {
    std::copy(apart.begin(), apart.end(), tree_.begin() + static_cast<std::ptrdiff_t>(leaves_));
    for (std::size_t at = leaves_; at-- > 1;) join(at);
  }

  /// Recomputes a piece. It keeps what enters and what leaves it. When its backward comes, readers have freed what
  /// leaves it, unless the stage's backward began with that. Its nodes run again, beside what leaves it (until all have
  /// run) and the gradients of that. Meanwhile they fill up with what they keep. Nothing of it is deferred. Parameter
  /// copies enter it, too, and stay until its backward is over.
  /// @param kept_gathered  unsharded parameters that the piece keeps for its backward
  /// @param all_gathered   those of the stage
  void recompute(const SegmentPiece& piece, Bytes kept_gathered = {}, Bytes all_gathered = {}) {
    const auto of = [](const std::map<NodeId, Bytes>& bytes, NodeId node) {
      const auto found = bytes.find(node);
      return found == bytes.end() ? Bytes(0) : found->second;
    };
    Bytes outside = piece.entering + piece.leaving, inside{}, again = piece.gradients;
    if (keeps_backwards_whole(schedule_)) inside -= piece.let_go;
    const auto place_of = [&](NodeId node) {
      return static_cast<std::size_t>(std::lower_bound(nodes_->begin(), nodes_->end(), node) - nodes_->begin());
    };
    Bytes copies{};
    for (const NodeId node : piece.nodes) copies += tree_[leaves_ + place_of(node)].copies;
    for (const NodeId node : piece.nodes) {
      const std::size_t place = place_of(node);
      const NodeCost& cost = (*costs_)[node.index()];
      inside += cost.saved - of(piece.for_others, node);
      again += of(piece.for_others, node);
      MicrobatchMemory& leaf = tree_[leaves_ + place];
      leaf.kept = std::exchange(outside, Bytes(0));
      leaf.copies = std::exchange(copies, Bytes(0));
      leaf.deferred_weight = Bytes(0);
      const Bytes gathered = gathered_.empty() ? Bytes(0) : std::min(gathered_[place] + kept_gathered, all_gathered);
      const Bytes works =
          inside + std::max(cost.workspace - of(piece.summed, node), cost.forward_workspace + again) + gathered;
      leaf.summing += works - std::exchange(leaf.work, works);
      for (std::size_t at = (leaves_ + place) / 2; at > 0; at /= 2) join(at);
    }
  }

  [[nodiscard]] const MicrobatchMemory& memory() const { return tree_[1]; }

 private:
  void join(std::size_t at) { tree_[at] = tree_[2 * at].with(tree_[2 * at + 1], schedule_); }

  const std::vector<NodeId>* nodes_;
  const std::vector<NodeCost>* costs_;
  ScheduleKind schedule_;
  std::vector<Bytes> gathered_;  // by place
  std::size_t leaves_;
  std::vector<MicrobatchMemory> tree_;  // the root is 1, the children of i are 2 i and 2 i + 1
};

}  // namespace detail

}  // namespace autopar
