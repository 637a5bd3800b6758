#pragma once

#include "kernels/kernel_source.hpp"

namespace autopar {

/// How the kernel of GELU's gradient is launched.
struct GeluGradientShape {
  static constexpr unsigned kPacks = 32;  ///< of a block: threads side by side
  static constexpr unsigned kRows = 16;   ///< of a block at a time: threads below one another
  static constexpr unsigned kFlight = 2;  ///< rows of both operands that a thread reads before it computes
};
static_assert(GeluGradientShape::kPacks == 32 && GeluGradientShape::kRows == 16 && GeluGradientShape::kFlight == 2,
              "as in the text");

/// CUDA C of the gradient dx of y = GELU(x) from that of y, both matrices of packs without gaps, and of sums over rows
/// of dx as it is stored.
///  `gelu_gradient_T`       of x normal(x), a block's rows [blockIdx.y * of_block, ...): dx, partial [blocks, columns]
///  `tanh_gelu_gradient_T`  of the formula with tanh
/// `add_up_columns_f32` of column_sums_source.hpp adds the sums up.
extern const KernelSource kGeluGradientKernels;

}  // namespace autopar
