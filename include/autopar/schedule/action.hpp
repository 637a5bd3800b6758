#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/core/interval.hpp>

namespace autopar {

/// The operation of an action.
enum class ActionKind : std::uint8_t {
  kForward,         ///< F: run a stage's forward on this rank's slice of a micro-batch
  kBackward,        ///< B and W together: gradients of the slice's inputs and of the stage's parameters
  kSend,            ///< send one message of a channel to `peer`; completes asynchronously
  kReceive,         ///< receive one message of a channel from `peer`; complete when the next action that needs it
                    ///< starts
  kAllReduce,       ///< all-reduce of one gradient bucket over a group; starts when the bucket is ready
  kBackwardInput,   ///< B: gradients of the slice's inputs; parameter gradients follow in its kBackwardWeight
  kBackwardWeight,  ///< W: the gradients of the stage's parameters that its kBackwardInput left out
  kReduceScatter,   ///< reduce-scatter of one gradient bucket: each member gets its shard of the sum
  kAllGather,       ///< all-gather of one bucket of parameters from the members' shards
};

/// Whether the action is a compute action of a stage. All others run asynchronously to computation.
[[nodiscard]] constexpr bool is_compute(ActionKind kind) {
  return kind == ActionKind::kForward || kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput ||
         kind == ActionKind::kBackwardWeight;
}
/// Whether all ranks of a group take part in the action.
[[nodiscard]] constexpr bool is_collective(ActionKind kind) {
  return kind == ActionKind::kAllReduce || kind == ActionKind::kReduceScatter || kind == ActionKind::kAllGather;
}
/// Whether the action reads and produces the gradients that are sent between stages.
[[nodiscard]] constexpr bool gives_input_gradients(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput;
}
/// Whether the slice's parameter gradients of the stage are complete after the action.
[[nodiscard]] constexpr bool gives_weight_gradients(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardWeight;
}

/// Whether tensor shards of a replica may exchange values within the action. A weight backward never does: it needs
/// only what the input backward exchanged.
[[nodiscard]] constexpr bool may_exchange(ActionKind kind) {
  return is_compute(kind) && kind != ActionKind::kBackwardWeight;
}

/// The direction of a message: values to later stages, or their gradients to earlier ones.
enum class Flow : std::uint8_t { kValue, kGradient };

/// One action in the program of one rank, interpreted by simulator and executor. Fields that an action does not use
/// keep their defaults, so equal actions compare equal.
struct Action {
  ActionKind kind = ActionKind::kForward;
  /// The stage of this rank that runs, sends or receives, or whose gradients are reduced. Messages may have kSource or
  /// kSink. Invalid for reductions of parameters tied across stages.
  StageId stage{};
  /// All kinds but kAllReduce. For kReduceScatter and kAllGather: the micro-batch of the compute action they belong to,
  /// or -1 for the whole call.
  int microbatch = -1;
  int channel = -1;  ///< kSend, kReceive: index into Pipeline::channels
  /// kGradient also for backwards, for a kAllGather that belongs to a backward, and for kAllReduce and kReduceScatter.
  Flow flow = Flow::kValue;
  Rank peer{};         ///< kSend, kReceive; the rank itself for a copy between two of its stages, source or sink
  Interval samples{};  ///< the slice, or the samples in the message; empty for messages that are not batched
  int group = -1;      ///< collectives: index into Pipeline::groups
  int bucket = -1;     ///< collectives: bucket of the group; reductions of whole calls are issued in ascending order
  /// For a kReduceScatter of a compute action that gathers: the number of the compute action's kGathers that are issued
  /// before it. A kAllGather of a compute action has its own position among them.
  int after = 0;

  friend bool operator==(const Action&, const Action&) = default;
};

/// For errors and traces: "send of gradients of channel 2, micro-batch 3, samples [0, 4), to rank 1".
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
    case ActionKind::kAllReduce:
      return "reduction of bucket " + std::to_string(action.bucket) + " over group " + std::to_string(action.group);
    case ActionKind::kReduceScatter:
      return "reduction into shards of bucket " + std::to_string(action.bucket) + " over group " +
             std::to_string(action.group) + (action.microbatch < 0 ? "" : microbatch);
    case ActionKind::kAllGather:
      return "gathering of bucket " + std::to_string(action.bucket) + " over group " + std::to_string(action.group) +
             (action.microbatch < 0 ? "" : (action.flow == Flow::kValue ? ", forward" : ", backward") + microbatch);
  }
  return "unknown action";
}

/// The actions of every rank: `ranks[r]` is what rank r does, in order.
struct Program {
  std::vector<std::vector<Action>> ranks;
  friend bool operator==(const Program&, const Program&) = default;
};

/// How many compute actions before its use a receive is posted, in simulator and executor.
inline constexpr int kReceivesAhead = 2;

/// How many buckets of parameters are gathered ahead of the one that a compute action needs.
inline constexpr int kGathersAhead = 1;

}  // namespace autopar
