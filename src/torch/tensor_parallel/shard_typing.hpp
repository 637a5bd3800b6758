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

/// The leaf that a value is, or a copy or cast of; none for other values.
[[nodiscard]] ValueId leaf_behind(const OpGraph& graph, ValueId value);

/// How the operators of a stage lie on the tensor axis, and what the shards of a replica exchange for it.
struct ShardedLayout {
  /// A value that becomes another before an operator reads it, or behind the operator that makes it.
  struct Move {
    ir::ShardMove move;
    ValueId value;
    UnitSlices slices{};  ///< of kGather, kScatter and kAssemble
    friend bool operator==(const Move&, const Move&) = default;
  };
  LeafSlices leaves{};
  std::vector<TensorLayout> layouts{};             ///< by ValueId: as they are made, sums once they are added up
  std::map<OpId, ShardedOp::Kernel> in_slices{};   ///< operators that work on slices, or on terms of a sum
  std::map<OpId, std::vector<Move>> before{};      ///< of operands
  std::set<ValueId> sums{};                        ///< results that are terms of a sum; those whose layout is in slices
                                                   ///< are added up slice by slice
  std::map<ValueId, UnitSlices> gathered_after{};  ///< made in slices and read whole outside
  std::vector<ValueId> conflicts{};                ///< whole operands beside operands in slices, or the other way round
  ValueId stale{};                                 ///< in slices, written whole: no way to run it; none otherwise
};

/// Finds it from the leaves that are in slices (GSPMD: Xu et al. 2021, arXiv 2105.04663, sections 3.2 and 3.4, with one
/// axis): operators follow their operands, in program order; what has no rule takes whole values and gives whole ones.
///
///     ShardTyping typing(graph, [&](OpId op) { return stage_of[op.index()] == stage; });
///     const auto layout = typing.run({{fc1_weight, {.dim = 0, .units = 1024}}}, is_free);
///
/// @cost O(operators that work on slices)
class ShardTyping {
 public:
  /// @param graph      must outlive this
  /// @param is_member  whether an operator is one of those that the shards run
  ShardTyping(const OpGraph& graph, std::function<bool(OpId)> is_member);

  /// @param may_slice  whether a leaf that an operator needs in slices may be held so, beside `leaves`
  /// @param sequence_shards  more than 1: sums of at least so many tokens are left in slices of tokens, and what
  /// follows
  ///                         them works on these as long as it has rules for it and reads no weights. All whole if
  ///                         something would write into them.
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
