#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include <autopar/capture/op_graph.hpp>

#include <autopar/capture/unit_slices.hpp>
#include "capture/algebra/batch_algebra.hpp"
#include "capture/ir/shard_moves.hpp"
#include "torch/tensor_parallel/sharded_op.hpp"

namespace autopar::tensor_parallel {

/// Parameters and buffers that tensor shards hold in slices.
using LeafSlices = std::map<ValueId, UnitSlices>;

/// The leaf that a value is, or is a copy or cast of; none for other values.
[[nodiscard]] ValueId leaf_behind(const OpGraph& graph, ValueId value);

/// The placement of a stage's values on the tensor axis, and the exchanges of a replica's shards.
struct ShardedLayout {
  /// A conversion of a value before an operator reads it, or after the operator that makes it.
  struct Move {
    ir::ShardMove move;
    ValueId value;
    UnitSlices slices{};  ///< of kGather, kScatter and kAssemble
    friend bool operator==(const Move&, const Move&) = default;
  };
  LeafSlices leaves{};
  std::vector<TensorLayout> layouts{};             ///< by ValueId: layouts as made; of sums, after they are added up
  std::map<OpId, ShardedOp::Kernel> in_slices{};   ///< operators that work on slices, or on partial sums
  std::map<OpId, std::vector<Move>> before{};      ///< conversions of the operator's operands
  std::set<ValueId> sums{};                        ///< results that are partial sums; those with a layout in slices are
                                                   ///< reduce-scattered
  std::map<ValueId, UnitSlices> gathered_after{};  ///< made in slices and read unsharded outside
  std::vector<ValueId> conflicts{};  ///< unsharded operands of operators with operands in slices, or vice versa
  ValueId stale{};                   ///< a value in slices that is written unsharded, so that the layout
                                     ///< cannot run; otherwise none
};

/// Infers the layout from the leaves that are in slices, in program order: operators follow their operands. An operator
/// without a rule takes and returns unsharded values.
///
///     ShardTyping typing(graph, [&](OpId op) { return stage_of[op.index()] == stage; });
///     const auto layout = typing.run({{fc1_weight, {.dim = 0, .units = 1024}}}, is_free);
///
/// @cost O(operators that work on slices)
/// @source GSPMD: Xu et al. 2021, arXiv 2105.04663, sections 3.2 and 3.4, with one axis
class ShardTyping {
 public:
  /// @param graph      must outlive the object
  /// @param is_member  whether the shards run an operator
  ShardTyping(const OpGraph& graph, std::function<bool(OpId)> is_member);

  /// @param may_slice  whether a leaf that an operator needs in slices may be held so, in addition to `leaves`
  /// @param sequence_shards  if more than 1, sums of at least this many tokens are left in slices of tokens. Operators
  /// after them work on slices as long as they have rules for it and read no weights. Nothing is left in slices if an
  /// operator would write into them.
  [[nodiscard]] ShardedLayout run(const LeafSlices& leaves, const std::function<bool(ValueId)>& may_slice,
                                  int sequence_shards = 1);

 private:
  /// @return whether no leaf was added
  bool pass(ShardedLayout& out, const std::function<bool(ValueId)>& may_slice, int sequence_shards);
  bool take_operands(ShardedLayout& out, OpId op, const ShardedOp& rule, const std::function<bool(ValueId)>& may_slice);
  void find_leaving(ShardedLayout& out) const;

  const OpGraph& graph_;
  std::function<bool(OpId)> is_member_;
  std::vector<std::vector<OpId>> uses_;
  std::vector<bool> is_output_;
  ShardRules rules_;
};

}  // namespace autopar::tensor_parallel
