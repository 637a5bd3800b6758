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

/// What the tensor shards of a replica do at an operator, besides running it on their values.
struct ShardedStep {
  int shards = 1;
  std::optional<ir::ShardMove> move{};                    ///< for operators that are moves
  ShardedOp::Kernel kernel = ShardedOp::Kernel::kAsItIs;  ///< for other operators
  UnitSlices slices{};                                    ///< for kGather, kScatter, classes and rows
  bool is_only_reader = false;                            ///< its first operand has no later reader
};

/// A captured program with the exchanges of tensor shards as operators. In one process these are copies, and all sizes
/// are unsharded, so code that reads programs can read this one. `on_shard` makes the program of one shard from it.
struct ShardedGraph {
  /// The slices of a value.
  struct Slices {
    std::size_t stage = 0;  ///< index of its stage among those given
    int shards = 1;
    UnitSlices slices;
  };
  OpGraph graph;
  std::vector<OpId> made_for;  ///< by OpId: the operator of the old program that it is or belongs to
  std::map<OpId, ShardedStep> steps;
  std::map<ValueId, Slices> slices;  ///< values in slices, including leaves
};

/// Inserts the exchanges. Values keep their ids; new ones follow.
/// @pre no layout has a stale value, and no leaf is in the slices of several stages
[[nodiscard]] ShardedGraph insert_moves(const OpGraph& graph, const std::vector<ShardedStage>& stages);

/// The program of one shard: the same operators and values, with the shard's sizes.
/// @param places  index of this rank among the shards, by stage as given to `insert_moves`; empty: not in the stage
[[nodiscard]] OpGraph on_shard(const ShardedGraph& sharded, const std::vector<std::optional<int>>& places);

/// The sizes on the shard with index `place`.
[[nodiscard]] std::vector<SizeExpr> sizes_on_shard(std::vector<SizeExpr> whole, const ShardedGraph::Slices& slices,
                                                   int place);

}  // namespace autopar::tensor_parallel
