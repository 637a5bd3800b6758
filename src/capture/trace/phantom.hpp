#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

namespace autopar {

/// A phantom is a CPU tensor with sizes, strides and type, and no memory. Operators on it never reach a kernel: they
/// are recorded (while a model is constructed or captured) or refused. `phantom.set_data(real)` makes it an ordinary
/// tensor in place, so that every handle to it, a module's typed member included, sees the data.

/// @param description  what it is and what to do instead, e.g. "parameter 'fc.weight' lives on rank 2; use gather(p)".
///                     Part of every error about it.
[[nodiscard]] at::Tensor make_phantom(c10::IntArrayRef sizes, c10::ScalarType dtype, bool requires_grad,
                                      const std::string& description);

[[nodiscard]] bool is_phantom(const at::Tensor& tensor);

/// Replaces the description, of one that nobody gives data any more: operators on it throw with the description, but
/// for those that make a tensor like it. @pre is_phantom(phantom)
void describe_phantom(const at::Tensor& phantom, const std::string& description);

/// Frees the data of `tensor` and makes the same handle a phantom of its sizes, strides and type; `.grad` is dropped.
void turn_into_phantom(at::Tensor& tensor, const std::string& description);

}  // namespace autopar
