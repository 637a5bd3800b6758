#pragma once

#include <ATen/core/Tensor.h>

#include "torch/autograd/sum_type.hpp"
#include "torch/fused/bias_gradient.hpp"
#include "torch/fused/column_sums.hpp"
#include "torch/fused/destination.hpp"

namespace autopar::autograd {

/// The gradient of a linear layer's bias, [outputs], in the type of sums. The kernel that wrote the gradient may
/// already have summed it. @param rows  `gradient` as [samples, outputs]
[[nodiscard]] inline at::Tensor gradient_of_bias(const at::Tensor& gradient, const at::Tensor& rows) {
  const auto type = sum_type(rows.scalar_type());
  const auto sums = fused::take_bias_gradient(gradient);
  return sums.defined() ? sums.to(type) : fused::column_sums(rows, type);
}

/// Adds it to `sum`, or writes it there.
inline void put_gradient_of_bias(const at::Tensor& gradient, const at::Tensor& rows, const at::Tensor& sum,
                                 fused::Destination destination) {
  if (destination == fused::Destination::kIsWritten)
    sum.copy_(gradient_of_bias(gradient, rows));
  else if (const auto sums = fused::take_bias_gradient(gradient); sums.defined())
    sum.add_(sums);
  else
    fused::add_column_sums(rows, sum_type(rows.scalar_type()), sum);
}

}  // namespace autopar::autograd
