#pragma once

#include <map>

#include <autopar/shard/group.hpp>

#include "capture/replay/replay.hpp"
#include "torch/tensor_parallel/sharded_graph.hpp"

namespace autopar::interpret {

/// The tensor shards of a replica, as the operators of a stage use them.
struct TensorShards {
  std::map<OpId, tensor_parallel::ShardedStep> steps;  ///< empty: the stage is on one rank
  Group group;

  /// The step of an operator; null for operators that every shard runs whole.
  [[nodiscard]] const tensor_parallel::ShardedStep* step_of(OpId op) const {
    const auto found = steps.find(op);
    return found == steps.end() ? nullptr : &found->second;
  }
};

/// Whether an operator needs `run_on_shards`. If not, it runs on the shard's tensors.
[[nodiscard]] bool needs_shards(const tensor_parallel::ShardedStep& step);

/// Before an operator of Kernel::kBiasOnce: on all shards but the first it reads zeros in place of its bias. Every
/// shard gets the whole gradient of the bias.
void leave_bias_to_first(replay::ReplayCall& call, const Group& group);

/// Runs an operator together with the other shards: an exchange of values, a loss over classes, or embedding rows.
/// @throws InvalidArgument on all shards, for a target or an index that is out of range
void run_on_shards(replay::ReplayCall& call, const tensor_parallel::ShardedStep& step, const Group& group);

}  // namespace autopar::interpret
