#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace autopar::trace {

/// Whether the call is a batch norm that normalises by its samples' statistics.
[[nodiscard]] bool is_training_batch_norm(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

/// The same batch norm, from per-sample operators and two all-reduces. They sum the samples, and then the squares of
/// their distances from the mean. With two passes, a large mean costs no accuracy. Running statistics are updated as in
/// libtorch.
/// @param stack  arguments of aten::batch_norm on entry, its result on return
void exact_batch_norm(torch::jit::Stack* stack);

}  // namespace autopar::trace
