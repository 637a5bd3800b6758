#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/convolution_backward.h>

namespace autopar::autograd {

/// The arguments of a convolution other than its tensors.
struct ConvolutionForm {
  std::vector<std::int64_t> stride, padding, dilation, output_padding;
  bool transposed = false;
  std::int64_t groups = 1;
  bool has_bias = false;

  /// @param wanted  the gradients of x, weight and bias
  [[nodiscard]] auto backward(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight,
                              std::array<bool, 3> wanted) const {
    // Not the gradient's channels: without input channels libtorch's result has no channels.
    const std::int64_t outputs[] = {transposed ? weight.size(1) * groups : weight.size(0)};
    const auto bias_sizes = has_bias ? at::OptionalIntArrayRef(outputs) : at::OptionalIntArrayRef();
    return at::convolution_backward(gradient, x, weight, bias_sizes, stride, padding, dilation, transposed,
                                    output_padding, groups, wanted);
  }
};

}  // namespace autopar::autograd
