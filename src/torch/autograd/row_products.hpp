#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "torch/autograd/convolution_form.hpp"

namespace autopar {

/// a^T b of matrices with a row for each place of the data: the gradient of a weight. Sums of 16-bit numbers are left
/// in single precision.
[[nodiscard]] at::Tensor product_over_rows(const at::Tensor& a, const at::Tensor& b);

/// Adds it to a sum without gaps. On a GPU a product writes to where it is added.
void add_product_over_rows(const at::Tensor& a, const at::Tensor& b, const at::Tensor& sum);

/// Matrices with a row for each pixel of each sample.
struct PixelRows {
  at::Tensor gradient, x;  ///< [pixels, outputs], [pixels, inputs]; views
};

/// Both as matrices, if the weight's gradient is their product over rows: each pixel of the result is made of one of x,
/// and channels lie together. Else nothing.
[[nodiscard]] std::optional<PixelRows> pixel_rows_of(const ConvolutionForm& form, const at::Tensor& gradient,
                                                     const at::Tensor& x, const at::Tensor& weight);

/// Whether the product is as fast as the device's own backward of a convolution, so that its sums are had in single
/// precision for nothing: cuDNN runs one for large weights, and parts the long sums of small ones.
[[nodiscard]] bool gains_as_product(const at::Tensor& gradient, const at::Tensor& weight);

}  // namespace autopar
