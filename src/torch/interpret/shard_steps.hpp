#pragma once

#include <map>

#include <autopar/shard/group.hpp>

#include "capture/replay/replay.hpp"
#include "torch/tensor_parallel/sharded_graph.hpp"

namespace autopar {

/// The tensor shards of a replica, as the operators of a stage use them.
struct TensorShards {
  std::map<OpId, ShardedStep> steps;  ///< empty: the stage is on one rank
  Group group;

  /// Null for operators that every shard runs whole.
  [[nodiscard]] const ShardedStep* step_of(OpId op) const {
    const auto found = steps.find(op);
    return found == steps.end() ? nullptr : &found->second;
  }
};

/// Whether an operator is run by `proceed_as_shard`, and not as it is on what the shard has.
[[nodiscard]] bool needs_shards(const ShardedStep& step);

/// Runs it together with the other shards: an exchange of values, a loss over classes, an embedding's rows.
/// @throws InvalidArgument for a target or an index that is none of the whole, on all shards
void proceed_as_shard(ReplayCall& call, const ShardedStep& step, const Group& group);

}  // namespace autopar
