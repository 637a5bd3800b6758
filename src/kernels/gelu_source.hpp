#pragma once

#include "kernels/kernel_source.hpp"

namespace autopar {

/// How the kernel of GELU is launched: a row of blocks, which take turns.
struct GeluShape {
  static constexpr unsigned kThreads = 512;  ///< of a block
  static constexpr int kFlight = 4;          ///< packs that a thread reads before it computes
};
static_assert(GeluShape::kThreads == 512 && GeluShape::kFlight == 4, "as in the text");

/// CUDA C of y = GELU(x), both packs without gaps, by libtorch's formulas: the same bits.
///  `gelu_T`       of x N(x); a block takes `of_block` packs at a time, at most kFlight for each thread
///  `tanh_gelu_T`  of the formula with tanh
extern const KernelSource kGeluKernels;

}  // namespace autopar
