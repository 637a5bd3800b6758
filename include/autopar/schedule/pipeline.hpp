#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/schedule/action.hpp>
#include <autopar/schedule/mesh.hpp>

namespace autopar {

/// How the values of a channel are divided among replicas.
enum class ChannelKind : std::uint8_t {
  kBatched,     ///< each sample is on one replica; messages are intersections of the two splits
  kReplicated,  ///< the same value on every replica; one message for each receiver
  kPartialSum,  ///< replicas hold addends; receivers add what arrives, and one addend arrives once
  kTotal,       ///< replicas hold addends; each receiver gets all of them and so the same sum, bit for bit
};

/// All values of one kind that are made in stage `from` and read in stage `to`; they travel together.
/// The pseudo stages kSource (the callers' inputs, every rank its own piece) and kSink (results, split like the inputs)
/// make inputs, outputs and their gradients ordinary channels.
struct Channel {
  StageId from;
  StageId to;
  ChannelKind kind = ChannelKind::kBatched;
  bool differentiable = true;  ///< a gradient comes back for at least one of its values
  friend bool operator==(const Channel&, const Channel&) = default;
};

inline constexpr StageId kSource{-2};
inline constexpr StageId kSink{-3};

/// Ranks that sum gradients together, bucket by bucket: the replicas of one tensor shard of a stage, or the union of
/// ranks that hold a parameter tied across stages.
struct ReduceGroup {
  std::vector<Rank> ranks;  ///< ascending, at least two
  StageId stage;            ///< complete after its last backward; invalid (tied parameters): after the ranks' last
  int buckets = 1;
  /// ZeRO level: what the members hold in shards. 1: sums go into shards, and parameters are gathered at the start of a
  /// call. 2 (with a stage): sums into shards within every backward that gives weight gradients. 3 (with a stage):
  /// parameters are gathered within every compute action, too, instead of at the start.
  int zero = 0;
  /// From level 2 on, of a stage that gathers within compute actions: how many buckets a whole backward of a rank
  /// gathers until it has filled this group's. Sums are issued behind them and those that are gathered ahead, and the
  /// others are gathered behind the sums.
  int filled_after = std::numeric_limits<int>::max();
  friend bool operator==(const ReduceGroup&, const ReduceGroup&) = default;
};

/// What a schedule must know of a plan. Channels run from earlier to later stages. A rank may run several stages (its
/// "chunks"), each once.
struct Pipeline {
  int ranks = 1;
  std::vector<Mesh> stages;
  std::vector<Channel> channels;
  std::vector<ReduceGroup> groups;  ///< in the order in which they are issued: best later stages first
  /// By stage that gathers within compute actions: its groups in the order in which a whole backward needs them, each
  /// once or, if it is let go of in between, several times. Nothing for a stage, or for all: each once, in the groups'
  /// order. The tensor shards of a replica, which exchange values in between, gather theirs in step.
  std::vector<std::vector<int>> backward_gathers = {};

  friend bool operator==(const Pipeline&, const Pipeline&) = default;
};

/// How one call's samples are divided: rank r brings `local[r]` samples, cut into `microbatches` pieces.
struct BatchLayout {
  std::vector<std::int64_t> local;
  int microbatches = 1;
  friend bool operator==(const BatchLayout&, const BatchLayout&) = default;
};

/// Which part of a step a program covers.
enum class Phase : std::uint8_t {
  kStep,      ///< forwards and backwards, pipelined (loss mode)
  kForward,   ///< all forwards; results to the sink (output mode, inference)
  kBackward,  ///< all backwards; result gradients from the sink (output mode)
};

/// Whether a group's collectives stand around the compute actions of its stage: all replicas then run such a compute
/// action together.
[[nodiscard]] constexpr bool gathers_in_computes(const ReduceGroup& group) {
  return group.zero >= 3 && group.buckets > 0;
}
[[nodiscard]] constexpr bool sums_in_computes(const ReduceGroup& group) { return group.zero >= 2 && group.buckets > 0; }

/// Whether the tensor shards of a replica exchange values within a compute action, which they then run together.
[[nodiscard]] inline bool exchanges_in_compute(const Mesh& mesh, ActionKind compute) {
  return mesh.tensor() > 1 && may_exchange(compute);
}

/// The tensor shard of its stage whose replicas a group is. @pre it has a stage, and is one's
[[nodiscard]] inline int shard_of(const Pipeline& pipeline, const ReduceGroup& group) {
  return *pipeline.stages[group.stage.index()].shard_of(group.ranks.front());
}

/// Groups that a whole backward of a stage gathers on the ranks of one tensor shard, in that order.
[[nodiscard]] inline std::vector<int> gathered_by_backward(const Pipeline& pipeline, StageId stage, int shard) {
  const bool listed =
      stage.index() < pipeline.backward_gathers.size() && !pipeline.backward_gathers[stage.index()].empty();
  std::vector<int> groups;
  const auto add = [&](int g) {
    const ReduceGroup& group = pipeline.groups[static_cast<std::size_t>(g)];
    if (group.stage == stage && gathers_in_computes(group) && shard_of(pipeline, group) == shard) groups.push_back(g);
  };
  if (listed) {
    for (const int g : pipeline.backward_gathers[stage.index()]) add(g);
  } else {
    for (std::size_t g = 0; g < pipeline.groups.size(); ++g) add(static_cast<int>(g));
  }
  return groups;
}

/// The stage at the writing or the reading end of a message.
[[nodiscard]] constexpr StageId writer_of(const Channel& channel, Flow flow) {
  return flow == Flow::kValue ? channel.from : channel.to;
}
[[nodiscard]] constexpr StageId reader_of(const Channel& channel, Flow flow) {
  return flow == Flow::kValue ? channel.to : channel.from;
}

/// Whether a phase moves anything over a channel in this direction. In a whole step the results have no gradient from
/// outside: the loss starts its own backward in the stages that compute it.
[[nodiscard]] constexpr bool travels(const Channel& channel, Flow flow, Phase phase) {
  if (flow == Flow::kValue) return phase != Phase::kBackward;
  if (!channel.differentiable || phase == Phase::kForward) return false;
  return phase == Phase::kBackward || channel.to != kSink;
}

}  // namespace autopar
