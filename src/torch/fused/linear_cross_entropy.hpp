#pragma once

#include <cstdint>

#include <ATen/core/stack.h>

#include <autopar/capture/op_graph.hpp>
#include <autopar/core/split.hpp>
#include <autopar/shard/group.hpp>

namespace autopar::fused {

/// Runs a fused linear cross entropy (`kLinearCrossEntropy`) whose classes are split over shards. The gradient of its
/// features is this shard's term of a sum.
/// @param stack  its arguments, with slices of projection and bias
/// @throws InvalidArgument on CPUs, if a target is not a class
[[nodiscard]] at::Tensor linear_cross_entropy_of_shard(const torch::jit::Stack& stack, const Group& group,
                                                       const Split& classes);

/// The least elements of a chunk of logits. A chunk may be larger: a fixed part of all logits, if that is more.
inline constexpr double kLeastLogitsChunk = 1 << 22;
inline constexpr double kMostLogitsChunks = 16;

/// Bytes of logits that the operator's pattern saves for `samples` samples; 0 if nothing in the program matches.
[[nodiscard]] double bytes_of_chunked_logits(const OpGraph& graph, std::int64_t samples);

}  // namespace autopar::fused
