#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

namespace autopar::trace {

/// A fake tensor is a CPU tensor with sizes, strides and type, and no memory. Operators on it never reach a kernel:
/// they are recorded (while a model is constructed or captured) or refused. `fake.set_data(real)` makes it an ordinary
/// tensor in place. Every handle to it then sees the data, including a module's typed member.

/// @param description  describes the tensor and the alternative, e.g. "parameter 'fc.weight' lives on rank 2; use
///                     gather(p)". Part of every error about it.
[[nodiscard]] at::Tensor make_fake(c10::IntArrayRef sizes, c10::ScalarType dtype, bool requires_grad,
                                   const std::string& description);

[[nodiscard]] bool is_fake(const at::Tensor& tensor);

/// Replaces the description of a fake tensor that will never get data. Operators on it throw with the description,
/// except operators that make a tensor like it. @pre is_fake(fake)
void describe_fake(const at::Tensor& fake, const std::string& description);

/// Frees the data of `tensor` and makes the same handle a fake tensor of its sizes, strides and type; `.grad` is
/// dropped.
void turn_into_fake(at::Tensor& tensor, const std::string& description);

}  // namespace autopar::trace
