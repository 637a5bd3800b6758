#pragma once

#include <ATen/core/Tensor.h>

#include <autopar/capture/op_graph.hpp>

namespace autopar::autograd {

/// The parameter's elements in the type of `form`, and in channels-last layout if `form` has it; in memory as that of
/// copies that parameters keep (`fused::empty_in_packs`). Autograd records nothing.
[[nodiscard]] at::Tensor cast_of(const at::Tensor& parameter, const ValueInfo& form);

/// `cast` with the autograd node of a cast of the parameter, if gradients are recorded. `cast` may have been made
/// anywhere. The node's backward runs as soon as its gradient is computed, and converts it by `in_form_of`. If a reader
/// computes the gradient of `cast` in single precision, it arrives unrounded.
[[nodiscard]] at::Tensor with_history_of(const at::Tensor& parameter, const at::Tensor& cast);

/// A parameter's gradient in the type and layout that autograd accumulates without a copy. The 16-bit gradient of a
/// parameter in single precision is widened and given the parameter's layout in one pass over memory. Exact. Other
/// gradients stay as they are.
[[nodiscard]] at::Tensor in_form_of(const at::Tensor& parameter, at::Tensor gradient);

}  // namespace autopar::autograd
