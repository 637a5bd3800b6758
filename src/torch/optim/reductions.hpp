#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace autopar::optim::detail {

/// p-norms in double precision: [tensors], on the device of the first defined one; 0 for undefined and empty tensors.
/// On CPUs libtorch would first convert a whole tensor to double.
/// @param p  1 or more, or infinity
[[nodiscard]] at::Tensor norms_of(const std::vector<at::Tensor>& tensors, double p);

/// The dot product in double precision of tensors of the same sizes, 0-dim.
[[nodiscard]] at::Tensor dot_of(const at::Tensor& a, const at::Tensor& b);

}  // namespace autopar::optim::detail
