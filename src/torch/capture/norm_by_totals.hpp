#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace autopar::detail {

/// Whether the call is a batch norm that normalises by its samples.
[[nodiscard]] bool is_training_batch_norm(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

/// The same batch norm, written with operators of which each treats samples alike, and two *totals*: of the sum of the
/// samples and of their squares around the mean (two passes, so that a large mean costs no accuracy). `autopar::total`
/// is the identity; where shares of a batch are on several replicas, it takes what they add up to. Running statistics
/// are updated as libtorch does.
/// @param stack  arguments of aten::batch_norm on entry, its result on return
void norm_by_totals(torch::jit::Stack* stack);

}  // namespace autopar::detail
