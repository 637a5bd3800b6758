#pragma once

#include <cstddef>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DeviceType.h>

namespace autopar::detail {

/// Casts the arguments of an operator as libtorch's autocast on a device of type `device` would and calls it, with
/// autocast off; false if autocast leaves the operator as it is. The tensors are CPU tensors, whatever the device.
///
/// CPU: the kernels that libtorch registered. CUDA: the lists of ATen/autocast_mode.h, of which libtorch makes its CUDA
/// kernels, instantiated for CPU tensors. Beside them, on both: sums and means of all elements give float32, `einsum`
/// is a product, and recurrent layers run in float32.
[[nodiscard]] bool call_autocast_kernel(const c10::OperatorHandle& op, c10::DeviceType device,
                                        torch::jit::Stack* stack);

/// The same for a program that computes in autocast's element type throughout: factors of products are cast to it, what
/// sums over samples or classes (losses, log_softmax, sums and means of all elements) and recurrent layers to float32.
[[nodiscard]] bool call_low_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// Casts the arguments of an operator as its definition says (`OpDef::autocast`); the caller calls it.
/// @param low  autocast's element type
/// @return whether it does: the operator is then recorded as it is
[[nodiscard]] bool cast_as_defined(const c10::OperatorHandle& op, at::ScalarType low, torch::jit::Stack& stack);

/// How many of an operator's first arguments such a program casts where they are parameters, buffers or arguments: none
/// of losses, recurrent layers and conversions, the values alone of norms with running statistics, whose kernels take
/// float32 beside 16 bits, else all.
[[nodiscard]] std::size_t lowered_arguments(const c10::OperatorHandle& op);

/// Composites that have no autocast operator inside, and that the batch algebra knows as a whole only, that copy or do
/// not by how their operand lies in memory, or that check their operand's values.
[[nodiscard]] bool is_free_of_autocast(const c10::OperatorHandle& op);

}  // namespace autopar::detail
