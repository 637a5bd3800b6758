#pragma once

#include <vector>

#include <autopar/capture/op_graph.hpp>
#include <autopar/capture/shard_rule.hpp>

namespace autopar::tensor_parallel {

/// The sharding rules of operators (`OpDef::sharding`) for operands that are unsharded or in slices; partial sums have
/// been added up. An operator without a rule takes and returns unsharded values.
class ShardRules {
 public:
  /// @param graph  must outlive the object
  explicit ShardRules(const OpGraph& graph) : graph_(graph), types_(graph.values.size()) {}
  /// @param layouts  by ValueId
  /// @cost O(dims)
  [[nodiscard]] ShardedOp operator()(const std::vector<TensorLayout>& layouts, OpId id);

 private:
  [[nodiscard]] ShardedOp apply(const std::vector<TensorLayout>& layouts, OpId id, std::vector<ValueId> sharded);

  const OpGraph& graph_;
  std::vector<BatchType> types_;  ///< scratch: replicated between calls
};

}  // namespace autopar::tensor_parallel
