#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <autopar/capture/op_call.hpp>
#include <autopar/capture/unit_slices.hpp>

namespace autopar {

/// How the tensor shards of a replica run an operator some of whose operands they have in slices.
struct ShardedOp {
  enum class Kernel : std::uint8_t {
    kAsItIs,       ///< the operator itself, on what the shard has
    kWithoutBias,  ///< a layer whose bias is added once, to the sum; needs LayerForm::drop_bias
    kTogether,     ///< the shards run it together (interpret/shard_steps.hpp); of the library's operators alone
  };
  bool in_slices = false;  ///< else it takes whole operands and gives whole results
  /// Operands that it takes in slices; all others it takes whole, those in slices of tokens among them, and those that
  /// only lend their sizes (view_as) not at all.
  std::map<ValueId, UnitSlices> needs;
  std::vector<TensorLayout> results;  ///< one a tensor result, lists flattened
  Kernel kernel = Kernel::kAsItIs;

  [[nodiscard]] static ShardedOp whole() { return {}; }
};

/// An operator some of whose operands are in slices, as sharding rules see it; made for one call of one rule.
///
/// An operand that is needed in slices and is whole so far is one to be cut: a parameter that is held in slices then,
/// or a value of which each shard takes its part.
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
  /// Operands in slices, in the operator's order, each once; never empty where a rule is asked.
  [[nodiscard]] const std::vector<ValueId>& sharded() const { return sharded_; }
  [[nodiscard]] bool is_sharded(ValueId value) const;
  /// @pre is_sharded(value)
  [[nodiscard]] const UnitSlices& slices(ValueId value) const { return layouts_[value.index()].slices(); }
  /// Whether the argument `dim` names the sharded dim of the first tensor.
  [[nodiscard]] bool along_own_dim() const;
  /// Whether a memory is written that is not the shard's own.
  [[nodiscard]] bool writes_whole() const;

  /// Notes that an operand takes part in a sharded dim, its own `dim`: there it must have the same units.
  /// @return whether it can
  [[nodiscard]] bool require(ValueId operand, std::int64_t dim, const UnitSlices& as);

  /// Whether it is in slices, or noted to be needed so.
  [[nodiscard]] bool needs(ValueId operand) const { return out_.needs.count(operand) > 0; }

  /// All results are in these slices.
  [[nodiscard]] ShardedOp of_one(const UnitSlices& result, ShardedOp::Kernel kernel = ShardedOp::Kernel::kAsItIs);
  /// All results are terms of a sum.
  [[nodiscard]] ShardedOp sum(ShardedOp::Kernel kernel = ShardedOp::Kernel::kAsItIs);
  /// These results.
  [[nodiscard]] ShardedOp with(std::vector<TensorLayout> results,
                               ShardedOp::Kernel kernel = ShardedOp::Kernel::kAsItIs);
  /// The operator's rule over samples, with units in place of samples: for what moves dims only, or works along others.
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
