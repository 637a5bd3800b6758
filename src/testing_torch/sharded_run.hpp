#pragma once

#include <cstdint>
#include <map>

#include "testing_torch/tensors.hpp"
#include "torch/tensor_parallel/shard_typing.hpp"

namespace autopar::testing::op_laws {

inline constexpr int kShards = 2;

/// Whether a tensor has the slices' blocks of whole units.
[[nodiscard]] bool fits(const UnitSlices& slices, const at::Tensor& whole, std::int64_t batch);

/// What the shard at `place` has of a tensor. @pre fits
[[nodiscard]] at::Tensor slice_of(const at::Tensor& whole, const UnitSlices& slices, std::int64_t batch, int place);

/// Runs one operator as the tensor shards of a replica do, with what they exchange around it, in one process.
/// @param layout    of a typing whose only member is the operator
/// @param operands  whole
/// @return what each shard has of the operands, of the operator's results, and of what was made on the way
/// @throws what an operator throws
[[nodiscard]] std::map<ValueId, Tensors> run_in_shards(const OpGraph& graph, const ShardedLayout& layout, OpId call,
                                                       const std::map<ValueId, at::Tensor>& operands,
                                                       std::int64_t batch);

}  // namespace autopar::testing::op_laws
