#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "kernels/kernel_source.hpp"

namespace autopar::fused {

/// Whether `cross_entropy_in_kernels` supports the arguments. Logits [N, C] are contiguous, in 16 bits or single
/// precision, on a device that compiles kernels. Class indices have 64 bits; class weights are in single precision.
[[nodiscard]] bool has_class_loss_kernels(const at::Tensor& logits, const at::Tensor& target,
                                          const std::optional<at::Tensor>& weight);

/// Cross entropy with a custom autograd function. The logits are read twice: once in the forward, once in the backward.
/// @param overwrites  the gradient overwrites the memory of the logits, unless the backward keeps its graph
/// @return in single precision: [N], or [] if the reduction sums or averages
/// @pre has_class_loss_kernels(logits, target, weight)
[[nodiscard]] at::Tensor cross_entropy_in_kernels(const at::Tensor& logits, const at::Tensor& target,
                                                  const std::optional<at::Tensor>& weight, std::int64_t reduction,
                                                  std::int64_t ignore_index, bool overwrites);

/// Whether an operator of a program is this cross entropy, which computes in single precision for all types of logits.
[[nodiscard]] bool widens_logits(const c10::OperatorHandle& op);

/// The same by libtorch's operators: logits of 16 bits are cast to single precision first.
[[nodiscard]] at::Tensor cross_entropy_of_libtorch(const at::Tensor& logits, const at::Tensor& target,
                                                   const std::optional<at::Tensor>& weight, std::int64_t reduction,
                                                   std::int64_t ignore_index, double label_smoothing);

namespace detail {

/// The kernel that makes "losses", "statistics" or "gradients" of such logits, and its launch.
[[nodiscard]] std::string class_loss_kernel(const char* what, const at::Tensor& logits);
[[nodiscard]] kernels::LaunchShape class_loss_shape(const at::Tensor& logits);

}  // namespace detail

}  // namespace autopar::fused
