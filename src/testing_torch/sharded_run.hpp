#pragma once

#include <cstdint>
#include <map>

#include "testing_torch/tensors.hpp"
#include "torch/tensor_parallel/shard_typing.hpp"

namespace autopar::testing::op_laws {

inline constexpr int kShards = 2;

/// Whether a tensor can be cut into the slices: its dim consists of blocks of whole units.
[[nodiscard]] bool fits(const UnitSlices& slices, const at::Tensor& whole, std::int64_t batch);

/// The part of a tensor on the shard at `place`. @pre fits
[[nodiscard]] at::Tensor slice_of(const at::Tensor& whole, const UnitSlices& slices, std::int64_t batch, int place);

/// Runs one operator like the tensor shards of a replica, including their exchanges around it, in one process.
/// @param layout    layout of a typing whose only member is the operator
/// @param operands  whole
/// @return by value, each shard's part: of operands, of the operator's results, and of intermediate values
/// @throws the exceptions of the operator
[[nodiscard]] std::map<ValueId, Tensors> run_in_shards(const OpGraph& graph,
                                                       const tensor_parallel::ShardedLayout& layout, OpId call,
                                                       const std::map<ValueId, at::Tensor>& operands,
                                                       std::int64_t batch);

}  // namespace autopar::testing::op_laws
