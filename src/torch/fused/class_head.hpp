#pragma once

#include <cstdint>

#include <ATen/core/stack.h>

#include <autopar/capture/op_graph.hpp>
#include <autopar/core/split.hpp>
#include <autopar/shard/group.hpp>

namespace autopar::fused {

/// Runs a class head (`kLinearCrossEntropy`) of which each shard has some classes. The gradient of its features is this
/// shard's term of a sum.
/// @param stack  its arguments, projection and bias in slices
/// @throws InvalidArgument on CPUs, if a target is no class
[[nodiscard]] at::Tensor class_head_of_shard(const torch::jit::Stack& stack, const Group& group, const Split& classes);

/// Elements of logits that are there at a time: as many, or so large a part of all logits if that is more.
inline constexpr double kLeastClassHeadChunk = 1 << 22;
inline constexpr double kMostClassHeadChunks = 16;

/// Bytes of logits that the operator's pattern leaves out for `samples` samples; 0: the program has no such head.
[[nodiscard]] double logits_of_class_heads(const OpGraph& graph, std::int64_t samples);

}  // namespace autopar::fused
