#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "torch/autograd/convolution_form.hpp"
#include "torch/fused/destination.hpp"

namespace autopar::autograd {

/// a^T b of matrices with a row for each place of the data: the gradient of a weight. Sums of 16-bit numbers stay in
/// single precision.
[[nodiscard]] at::Tensor product_over_rows(const at::Tensor& a, const at::Tensor& b);

/// Adds the product to a contiguous sum, or writes it there. On a GPU the product does so directly.
void put_product_over_rows(const at::Tensor& a, const at::Tensor& b, const at::Tensor& sum,
                           fused::Destination destination);

/// Matrices with a row for each pixel of each sample.
struct PixelRows {
  at::Tensor gradient, x;  ///< [pixels, outputs], [pixels, inputs]; views
};

/// Gradient and x as matrices, if the weight's gradient is their product over rows. That requires that each pixel of
/// the result depends on one pixel of x, and that channels are contiguous. Otherwise none.
[[nodiscard]] std::optional<PixelRows> pixel_rows_of(const ConvolutionForm& form, const at::Tensor& gradient,
                                                     const at::Tensor& x, const at::Tensor& weight);

/// Whether the product is as fast as the device's own backward of a convolution. If so, sums in single precision are
/// free. cuDNN itself runs a product for large weights, and splits the long sums of small ones.
[[nodiscard]] bool gains_as_product(const at::Tensor& gradient, const at::Tensor& weight);

}  // namespace autopar::autograd
