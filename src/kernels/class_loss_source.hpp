#pragma once

#include "kernels/kernel_source.hpp"

namespace autopar {

/// Threads of a block, which has one row of logits.
inline constexpr unsigned kClassLossThreads = 512;

/// Cross entropy of rows of logits [rows, classes] in 16 bits or single precision, statistics in single precision. Rows
/// begin `width` elements apart, also those of the gradient:
///  `cross_entropy_losses_T`  reads the logits once: log-sums of exponentials and losses (Milakov, Gimelshein 2018:
///                            online softmax)
///  `cross_entropy_gradients_T`  reads them once more and writes the gradient, which may be in their place, and zeros
///                               in `padding` columns behind each row
/// A row whose target is none of the classes has the loss NaN, one of `ignored` zero and no gradient.
extern const KernelSource kClassLossKernels;

}  // namespace autopar
