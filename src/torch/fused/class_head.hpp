#pragma once

#include <ATen/core/stack.h>

#include <autopar/core/split.hpp>
#include <autopar/shard/group.hpp>

namespace autopar {

/// Runs a class head (ir/class_head.hpp) of which each shard has some classes. The gradient of its features is this
/// shard's term of a sum.
/// @param stack  its arguments, projection and bias in slices
/// @throws InvalidArgument on CPUs, if a target is no class
[[nodiscard]] at::Tensor class_head_of_shard(const torch::jit::Stack& stack, const Group& group, const Split& classes);

}  // namespace autopar
