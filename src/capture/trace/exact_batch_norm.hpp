#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace autopar::detail {

/// Whether the call is a batch norm that normalises by its samples.
[[nodiscard]] bool is_training_batch_norm(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

/// The same batch norm, written with operators of which each treats samples alike, and two all-reduces: of the sum of
/// the samples and of their squares around the mean (two passes, so that a large mean costs no accuracy). Running
/// statistics are updated as libtorch does.
/// @param stack  arguments of aten::batch_norm on entry, its result on return
void exact_batch_norm(torch::jit::Stack* stack);

}  // namespace autopar::detail
