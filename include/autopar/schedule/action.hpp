#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/core/interval.hpp>

namespace autopar {

/// What one step of a rank's program does.
enum class ActionKind : std::uint8_t {
  kForward,         ///< F: run a stage on this rank's slice of a micro-batch
  kBackward,        ///< B and W together: gradients of that slice, of its inputs and of the stage's parameters
  kSend,            ///< one message of a channel to `peer`; completes in the background
  kReceive,         ///< one message of a channel from `peer`; data is there when the next action that needs it starts
  kReduce,          ///< sum of one gradient bucket over a group; starts when the bucket is full
  kBackwardInput,   ///< B: gradients of the slice's inputs; those of the parameters come with its kBackwardWeight
  kBackwardWeight,  ///< W: gradients of the stage's parameters, which its kBackwardInput left out
  kReduceScatter,   ///< like kReduce, but each member gets its own shard of the sum alone
  kGather,          ///< the members' shards of one bucket of parameters, put together on each
};

/// Whether a rank computes: one compute action of a stage. Everything else happens beside it.
[[nodiscard]] constexpr bool is_compute(ActionKind kind) {
  return kind == ActionKind::kForward || kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput ||
         kind == ActionKind::kBackwardWeight;
}
/// Whether all ranks of a group take part.
[[nodiscard]] constexpr bool is_collective(ActionKind kind) {
  return kind == ActionKind::kReduce || kind == ActionKind::kReduceScatter || kind == ActionKind::kGather;
}
/// Whether it needs and makes the gradients that travel between stages.
[[nodiscard]] constexpr bool gives_input_gradients(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput;
}
/// Whether a stage's parameters have the slice's whole gradient after it.
[[nodiscard]] constexpr bool gives_weight_gradients(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardWeight;
}

/// Whether the tensor shards of a replica may exchange values within it. Gradients of weights need what the input
/// backward has exchanged, and no more.
[[nodiscard]] constexpr bool may_exchange(ActionKind kind) {
  return is_compute(kind) && kind != ActionKind::kBackwardWeight;
}

/// Which way a message of a channel goes: values to later stages, or their gradients back.
enum class Flow : std::uint8_t { kValue, kGradient };

/// One step of one rank's program. The simulator and the executor interpret the same value. What an action does not use
/// keeps its default, so that equal actions compare equal.
struct Action {
  ActionKind kind = ActionKind::kForward;
  /// The stage of this rank that acts: runs, sends (kSource, kSink too) or receives, or whose gradients are summed
  /// (invalid for parameters tied across stages).
  StageId stage{};
  /// All but kReduce; of kReduceScatter and kGather the micro-batch for whose compute action they are, -1 for the whole
  /// call.
  int microbatch = -1;
  int channel = -1;  ///< kSend, kReceive: index into Pipeline::channels
  /// kGradient also for all kinds of backward, the kGather for one, kReduce and kReduceScatter.
  Flow flow = Flow::kValue;
  Rank peer{};         ///< kSend, kReceive; the rank itself for a copy between two stages, source or sink of its own
  Interval samples{};  ///< the slice, or what the message carries (batched channels; others travel whole)
  int group = -1;      ///< collectives: index into Pipeline::groups
  int bucket = -1;     ///< collectives: bucket of that group; sums of whole calls are issued in ascending order
  /// kReduceScatter of a compute action that gathers: so many of the compute action's kGather are issued before it, and
  /// the others behind it. kGather for a compute action: likewise, which gives the order.
  int after = 0;

  friend bool operator==(const Action&, const Action&) = default;
};

/// In words, for errors and traces: "send of gradients of channel 2, micro-batch 3, samples [0, 4), to rank 1".
[[nodiscard]] inline std::string describe(const Action& action) {
  const auto samples = [&] {
    return ", samples [" + std::to_string(action.samples.begin) + ", " + std::to_string(action.samples.end) + ")";
  };
  const auto microbatch = ", micro-batch " + std::to_string(action.microbatch);
  const auto message = [&] {
    return std::string(action.flow == Flow::kValue ? "values" : "gradients") + " of channel " +
           std::to_string(action.channel) + microbatch + (action.samples.empty() ? "" : samples());
  };
  const auto peer = "rank " + std::to_string(action.peer.value());
  switch (action.kind) {
    case ActionKind::kForward:
      return "forward of stage " + std::to_string(action.stage.value()) + microbatch + samples();
    case ActionKind::kBackward:
      return "backward of stage " + std::to_string(action.stage.value()) + microbatch + samples();
    case ActionKind::kBackwardInput:
      return "input backward of stage " + std::to_string(action.stage.value()) + microbatch + samples();
    case ActionKind::kBackwardWeight:
      return "weight backward of stage " + std::to_string(action.stage.value()) + microbatch + samples();
    case ActionKind::kSend:
      return "send of " + message() + ", to " + peer;
    case ActionKind::kReceive:
      return "receive of " + message() + ", from " + peer;
    case ActionKind::kReduce:
      return "reduction of bucket " + std::to_string(action.bucket) + " over group " + std::to_string(action.group);
    case ActionKind::kReduceScatter:
      return "reduction into shards of bucket " + std::to_string(action.bucket) + " over group " +
             std::to_string(action.group) + (action.microbatch < 0 ? "" : microbatch);
    case ActionKind::kGather:
      return "gathering of bucket " + std::to_string(action.bucket) + " over group " + std::to_string(action.group) +
             (action.microbatch < 0 ? "" : (action.flow == Flow::kValue ? ", forward" : ", backward") + microbatch);
  }
  return "unknown action";
}

/// Per-rank action lists; `ranks[r]` is what rank r does, in order.
struct Program {
  std::vector<std::vector<Action>> ranks;
  friend bool operator==(const Program&, const Program&) = default;
};

/// How many compute actions ahead of its use a receive is posted. Simulator and executor agree on it.
inline constexpr int kReceivesAhead = 2;

/// How many buckets of parameters are gathered ahead of the one that a compute action needs.
inline constexpr int kGathersAhead = 1;

}  // namespace autopar
