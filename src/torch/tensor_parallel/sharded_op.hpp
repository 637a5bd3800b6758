#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <autopar/capture/op_graph.hpp>

#include "capture/algebra/op_context.hpp"
#include "torch/tensor_parallel/unit_slices.hpp"

namespace autopar {

/// How the tensor shards of a replica run an operator some of whose operands they have in slices.
struct ShardedOp {
  enum class Kernel : std::uint8_t {
    kAsItIs,         ///< the operator itself, on what the shard has
    kWithoutBias,    ///< a layer whose bias is added once, to the sum
    kClassLoss,      ///< cross entropy over classes that are sharded
    kClassHead,      ///< the same with the linear layer before it, see ir/class_head.hpp
    kEmbeddingRows,  ///< an embedding: rows that the shard lacks are zero
  };
  bool in_slices = false;  ///< else it takes whole operands and gives whole results
  /// Operands that it takes in slices; all others it takes whole, those in slices of tokens among them, and those that
  /// only lend their sizes (view_as) not at all.
  std::map<ValueId, UnitSlices> needs;
  std::vector<TensorLayout> results;  ///< one a tensor result, lists flattened
  Kernel kernel = Kernel::kAsItIs;

  [[nodiscard]] static ShardedOp whole() { return {}; }
};

/// Which argument of an operator is what Kernel::kWithoutBias leaves out: the bias of aten::linear, the addend of
/// aten::addmm.
[[nodiscard]] std::int32_t position_of_bias(const OpNode& node);

/// The rules of operators, from operands that are whole or in slices; sums have been added up before.
///
/// An operand that is needed in slices and is whole so far is one to be cut: a parameter that is held in slices then,
/// or a value of which each shard takes its part.
class ShardRules {
 public:
  /// @param graph  must outlive this
  explicit ShardRules(const OpGraph& graph) : graph_(graph), types_(graph.values.size()) {}
  /// @param layouts  by ValueId
  /// @cost O(dims)
  [[nodiscard]] ShardedOp operator()(const std::vector<TensorLayout>& layouts, OpId id);

 private:
  const OpGraph& graph_;
  std::vector<BatchType> types_;  ///< scratch: replicated between calls
};

}  // namespace autopar
