#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <autopar/capture/op_call.hpp>
#include <autopar/capture/unit_slices.hpp>

namespace autopar {

/// How the tensor shards of a replica run an operator with operands in slices.
struct ShardedOp {
  enum class Kernel : std::uint8_t {
    kAsItIs,    ///< the operator itself, on the shard's slices
    kBiasOnce,  ///< a layer that gives terms of a sum; the first shard's term has the bias. Needs LayerForm::bias
    kTogether,  ///< the shards run it together (interpret/shard_steps.hpp); only for the library's own operators
  };
  bool in_slices = false;  ///< if false, it takes whole operands and gives whole results
  /// Operands that it takes in slices. It takes all others whole, including operands in slices of tokens. It does not
  /// take operands that only lend their sizes (view_as).
  std::map<ValueId, UnitSlices> needs;
  std::vector<TensorLayout> results;  ///< one per tensor result, lists flattened
  Kernel kernel = Kernel::kAsItIs;

  [[nodiscard]] static ShardedOp whole() { return {}; }
};

/// An operator with operands in slices, as sharding rules see it. Made for one call of one rule.
///
/// A whole operand that is needed in slices will be cut. A parameter is then held in slices; of a value, each shard
/// takes its slice.
class ShardCall {
 public:
  /// @param layouts  by ValueId
  /// @param types    by ValueId, all replicated; scratch of `by_dims`
  /// @param sharded  operands in slices
  ShardCall(const OpGraph& graph, const std::vector<TensorLayout>& layouts, std::vector<BatchType>& types, OpId id,
            std::vector<ValueId> sharded);
  ShardCall(const ShardCall&) = delete;
  ShardCall& operator=(const ShardCall&) = delete;

  [[nodiscard]] const OpCall& op() const { return op_; }
  /// Operands in slices, in the operator's order, each once; never empty when a rule is called.
  [[nodiscard]] const std::vector<ValueId>& sharded() const { return sharded_; }
  [[nodiscard]] bool is_sharded(ValueId value) const;
  /// @pre is_sharded(value)
  [[nodiscard]] const UnitSlices& slices(ValueId value) const { return layouts_[value.index()].slices(); }
  /// Whether the argument `dim` names the sharded dim of the first tensor.
  [[nodiscard]] bool along_own_dim() const;
  /// Whether the operator writes in place to an operand that is not in slices.
  [[nodiscard]] bool writes_whole() const;

  /// Requires the operand to be in slices along its dim `dim`, with the same units as `as`.
  /// @return whether it can be
  [[nodiscard]] bool require(ValueId operand, std::int64_t dim, const UnitSlices& as);

  /// Whether the operand is needed in slices.
  [[nodiscard]] bool needs(ValueId operand) const { return out_.needs.count(operand) > 0; }

  /// All results are in these slices.
  [[nodiscard]] ShardedOp of_one(const UnitSlices& result, ShardedOp::Kernel kernel = ShardedOp::Kernel::kAsItIs);
  /// All results are partial sums over the shards.
  [[nodiscard]] ShardedOp sum(ShardedOp::Kernel kernel = ShardedOp::Kernel::kAsItIs);
  /// The results have these layouts.
  [[nodiscard]] ShardedOp with(std::vector<TensorLayout> results,
                               ShardedOp::Kernel kernel = ShardedOp::Kernel::kAsItIs);
  /// Applies the operator's rule over samples to units. For operators that only move dims, or work along other dims.
  [[nodiscard]] ShardedOp by_dims();

 private:
  const std::vector<TensorLayout>& layouts_;
  std::vector<BatchType>& types_;
  AlgebraOptions options_;
  OpCall op_;
  std::vector<ValueId> sharded_;
  ShardedOp out_;
};

}  // namespace autopar
