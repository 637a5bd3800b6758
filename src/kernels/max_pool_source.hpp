#pragma once

#include "kernels/kernel_source.hpp"

namespace autopar {

/// Windows over images, in elements. Of `kMaxPoolKernels`, too.
struct PoolWindows {
  int height = 0, width = 0;          ///< of an image
  int out_height = 0, out_width = 0;  ///< of its result
  int kernel_height = 0, kernel_width = 0;
  int stride_height = 0, stride_width = 0;
  int padding_height = 0, padding_width = 0;
};

/// Max-pooling of images [n, height, width, channels], channels next to each other. Which of a window's positions, row
/// by row, holds the first maximum, or the last NaN, is kept as a byte beside each result.
///  `max_pool_T`           y, and the positions unless they are null
///  `max_pool_gradient_T`  dx: each element looks at the windows that it lies in, so that nothing is added twice and
///                         nothing is cleared before. `other` is a second gradient of y, or null
/// Blocks take a row of an image's result, or of an image, at a time: threads have a pack of channels and every n-th
/// column. Sums are in single precision, by rows and columns of the result.
extern const KernelSource kMaxPoolKernels;

}  // namespace autopar
