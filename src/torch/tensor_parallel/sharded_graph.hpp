#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <vector>

#include <autopar/capture/op_graph.hpp>

#include <autopar/capture/unit_slices.hpp>
#include "capture/ir/shard_moves.hpp"
#include "torch/tensor_parallel/shard_typing.hpp"

namespace autopar::tensor_parallel {

/// The operators of a stage with several tensor shards.
struct ShardedStage {
  int shards = 1;
  ShardedLayout layout;
};

/// What the tensor shards of a replica do at an operator, beside running it on what they have.
struct ShardedStep {
  int shards = 1;
  std::optional<ir::ShardMove> move{};                    ///< of operators that are one
  ShardedOp::Kernel kernel = ShardedOp::Kernel::kAsItIs;  ///< of others
  UnitSlices slices{};                                    ///< of kGather, kScatter, classes and rows
  bool is_only_reader = false;                            ///< of its first operand, which nobody needs after it
};

/// A captured program with what tensor shards exchange as operators of its own. In one process these are copies: sizes
/// are those of the whole, so that everything that reads programs reads this one. `on_shard` makes of it what a shard
/// runs.
struct ShardedGraph {
  /// Of a value that shards have in slices.
  struct Slices {
    std::size_t stage = 0;  ///< place of its stage among those given
    int shards = 1;
    UnitSlices slices;
  };
  OpGraph graph;
  std::vector<OpId> made_for;  ///< by OpId: the operator of the program before that it is, or belongs to
  std::map<OpId, ShardedStep> steps;
  std::map<ValueId, Slices> slices;  ///< leaves among them
};

/// Values keep their ids, behind which new ones follow.
/// @pre no layout has a stale value, no leaf is in the slices of several stages
[[nodiscard]] ShardedGraph insert_moves(const OpGraph& graph, const std::vector<ShardedStage>& stages);

/// The program of one shard: the same operators and values, with the sizes that it has of them.
/// @param places  of this rank among the shards, by stage as given to `insert_moves`; none: it has nothing of it
[[nodiscard]] OpGraph on_shard(const ShardedGraph& sharded, const std::vector<std::optional<int>>& places);

/// Sizes on the shard at `place`.
[[nodiscard]] std::vector<SizeExpr> sizes_on_shard(std::vector<SizeExpr> whole, const ShardedGraph::Slices& slices,
                                                   int place);

}  // namespace autopar::tensor_parallel
