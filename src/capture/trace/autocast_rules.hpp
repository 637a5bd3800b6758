#pragma once

#include <cstddef>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DeviceType.h>

namespace autopar::trace {

/// Casts the arguments of an operator as libtorch's autocast on a device of type `device` would. Then it calls the
/// operator with autocast off. False if autocast leaves the operator as it is. The tensors are CPU tensors for any
/// `device`.
///
/// CPU: the kernels that libtorch registered. CUDA: the lists of ATen/autocast_mode.h, from which libtorch makes its
/// CUDA kernels, instantiated for CPU tensors. Additional rules for both: sums and means of all elements give float32,
/// `einsum` is a product, and recurrent layers run in float32.
[[nodiscard]] bool call_autocast_kernel(const c10::OperatorHandle& op, c10::DeviceType device,
                                        torch::jit::Stack* stack);

/// The same for a program that computes in autocast's element type throughout. Factors of products are cast to that
/// type. Operands of recurrent layers and of sums over samples or classes are cast to float32. Such sums are losses,
/// log_softmax, and sums and means of all elements.
[[nodiscard]] bool call_low_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// Casts the arguments of an operator as its definition says (`OpDef::autocast`); the caller calls it.
/// @param low  autocast's element type
/// @return whether the definition has a rule; the operator is then recorded as it is
[[nodiscard]] bool cast_as_defined(const c10::OperatorHandle& op, at::ScalarType low, torch::jit::Stack& stack);

/// How many of an operator's first arguments that program casts if they are parameters, buffers or model arguments.
/// None for losses, recurrent layers and conversions. Only the values for norms with running statistics, whose kernels
/// mix float32 and 16-bit arguments. All for other operators.
[[nodiscard]] std::size_t lowered_arguments(const c10::OperatorHandle& op);

/// Whether it is a composite operator that contains no autocast operator and must be recorded as one operator. Reasons:
/// the batch algebra only knows the whole operator, its operand's strides decide whether it copies, or it checks its
/// operand's values.
[[nodiscard]] bool is_free_of_autocast(const c10::OperatorHandle& op);

}  // namespace autopar::trace
