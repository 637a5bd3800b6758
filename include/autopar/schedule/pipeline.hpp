#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/schedule/action.hpp>
#include <autopar/schedule/mesh.hpp>

namespace autopar {

/// How replicas hold the values of a channel.
enum class ChannelKind : std::uint8_t {
  kBatched,     ///< each sample is on one replica; a message is the intersection of a sender's and a receiver's slice
  kReplicated,  ///< the same value on every replica; one message for each receiver
  kPartialSum,  ///< replicas hold addends; each addend is sent to one receiver, which adds those it receives
  kTotal,       ///< replicas hold addends; each receiver gets all of them, and so the same sum, bit for bit
};

/// All values of one kind that stage `from` produces and stage `to` reads; they are sent together. Two pseudo stages
/// make inputs, outputs and their gradients channels. The stage kSource has the callers' inputs, each rank its piece.
/// The stage kSink has the results, divided like the inputs.
struct Channel {
  StageId from;
  StageId to;
  ChannelKind kind = ChannelKind::kBatched;
  bool differentiable = true;  ///< at least one of its values has a gradient
  friend bool operator==(const Channel&, const Channel&) = default;
};

inline constexpr StageId kSource{-2};
inline constexpr StageId kSink{-3};

/// Ranks that reduce gradients together, bucket by bucket. These are the replicas of one tensor shard of a stage, or
/// all ranks that hold a parameter tied across stages.
struct ReduceGroup {
  std::vector<Rank> ranks;  ///< ascending, at least two
  StageId stage;            ///< gradients are complete after its last backward; invalid (tied parameters): after the
                            ///< ranks' last backward
  int buckets = 1;
  /// ZeRO level: what the members hold in shards. 1: gradients are reduced into shards, and parameters are gathered at
  /// the start of a call. 2 (with a stage): gradients are reduced into shards within every backward that computes
  /// weight gradients. 3 (with a stage): parameters are also gathered within every compute action instead of at the
  /// start.
  int zero = 0;
  /// For level 2 and above, in a stage that gathers within compute actions. The number of buckets that a rank's whole
  /// backward gathers until this group's buckets are filled. A reduction is issued after these gathers and the
  /// prefetched ones; the other gathers are issued after the reduction.
  int filled_after = std::numeric_limits<int>::max();
  friend bool operator==(const ReduceGroup&, const ReduceGroup&) = default;
};

/// What a schedule needs to know of a plan. Channels lead from earlier to later stages. A rank may run several stages
/// (its "chunks"), each once.
struct Pipeline {
  int ranks = 1;
  std::vector<Mesh> stages;
  std::vector<Channel> channels;
  std::vector<ReduceGroup> groups;  ///< in the order in which they are issued; later stages first is best
  /// For each stage that gathers within compute actions: its groups in the order in which a whole backward needs them.
  /// A group appears several times if it is resharded in between. If empty, for a stage or for all: each group once, in
  /// the groups' order. Tensor shards of a replica exchange values in between, so they gather in step.
  std::vector<std::vector<int>> backward_gathers = {};

  friend bool operator==(const Pipeline&, const Pipeline&) = default;
};

/// How one call's samples are divided: rank r has `local[r]` samples, cut into `microbatches` pieces.
struct BatchLayout {
  std::vector<std::int64_t> local;
  int microbatches = 1;
  friend bool operator==(const BatchLayout&, const BatchLayout&) = default;
};

/// The part of a step that a program covers.
enum class Phase : std::uint8_t {
  kStep,      ///< forwards and backwards, pipelined (loss mode)
  kForward,   ///< all forwards; results to the sink (output mode, inference)
  kBackward,  ///< all backwards; result gradients from the sink (output mode)
};

/// Whether a group's parameters are gathered within the compute actions of its stage: all replicas then run such a
/// compute action together.
[[nodiscard]] constexpr bool gathers_in_computes(const ReduceGroup& group) {
  return group.zero >= 3 && group.buckets > 0;
}
[[nodiscard]] constexpr bool sums_in_computes(const ReduceGroup& group) { return group.zero >= 2 && group.buckets > 0; }

/// Whether the tensor shards of a replica exchange values within a compute action, which they then run together.
[[nodiscard]] inline bool exchanges_in_compute(const Mesh& mesh, ActionKind compute) {
  return mesh.tensor() > 1 && may_exchange(compute);
}

/// The tensor shard whose replicas form the group.
/// @pre the group has a stage and consists of the replicas of one of its shards
[[nodiscard]] inline int shard_of(const Pipeline& pipeline, const ReduceGroup& group) {
  return *pipeline.stages[group.stage.index()].shard_of(group.ranks.front());
}

/// The groups that a whole backward of a stage gathers on the ranks of one tensor shard, in order.
[[nodiscard]] inline std::vector<int> gathered_by_backward(const Pipeline& pipeline, StageId stage, int shard) {
  std::vector<int> groups;
  if (stage.index() < pipeline.backward_gathers.size()) groups = pipeline.backward_gathers[stage.index()];
  if (groups.empty()) {
    groups.resize(pipeline.groups.size());
    std::iota(groups.begin(), groups.end(), 0);
  }
  std::erase_if(groups, [&](int g) {
    const ReduceGroup& group = pipeline.groups[static_cast<std::size_t>(g)];
    return group.stage != stage || !gathers_in_computes(group) || shard_of(pipeline, group) != shard;
  });
  return groups;
}

/// The stage that sends or receives a message.
[[nodiscard]] constexpr StageId writer_of(const Channel& channel, Flow flow) {
  return flow == Flow::kValue ? channel.from : channel.to;
}
[[nodiscard]] constexpr StageId reader_of(const Channel& channel, Flow flow) {
  return flow == Flow::kValue ? channel.to : channel.from;
}

/// Whether a phase sends anything over a channel in this direction. In a whole step the results have no gradient from
/// outside: the loss starts its backward in the stages that compute it.
[[nodiscard]] constexpr bool travels(const Channel& channel, Flow flow, Phase phase) {
  if (flow == Flow::kValue) return phase != Phase::kBackward;
  if (!channel.differentiable || phase == Phase::kForward) return false;
  return phase == Phase::kBackward || channel.to != kSink;
}

}  // namespace autopar
