#pragma once

#include <ATen/core/Tensor.h>

#include <autopar/capture/op_graph.hpp>

namespace autopar {

/// The parameter's elements in the type of `form`; of channels-last forms laid out so. Nothing is recorded.
[[nodiscard]] at::Tensor cast_of(const at::Tensor& parameter, const ValueInfo& form);

/// `cast`, wherever it was made, with the autograd node of a cast of the parameter where gradients are recorded. Its
/// backward runs as soon as the gradient is there, and gives it as `in_form_of` does. Who makes that of `cast` in
/// single precision gives it so: it is not rounded on the way.
[[nodiscard]] at::Tensor with_history_of(const at::Tensor& parameter, const at::Tensor& cast);

/// A parameter's gradient so that autograd takes it over as it is: 16-bit numbers of a parameter in single precision
/// widened, and laid out as the parameter lies, in one pass over memory. Exact. Others stay as they are.
[[nodiscard]] at::Tensor in_form_of(const at::Tensor& parameter, at::Tensor gradient);

}  // namespace autopar
