#pragma once

#include "kernels/kernel_source.hpp"

namespace autopar {

/// What one launch takes: data are [rows, channels] without gaps, channels next to each other. `Pack` is 16 bytes of
/// them.
struct BatchNormTables {
  static constexpr unsigned kThreads = 256;
};

/// Batch norm, the addition of a residual and ReLU: y = relu(scale (x - mean) + bias + residual), with
/// scale = weight / sqrt(var + eps). In single precision the mean is taken off first: scale x and scale mean may be
/// large beside their difference. Of 16 bits rounding x costs more than that, and y = relu(scale x + offset +
/// residual), with offset = bias - scale mean, leaves room for more threads at a time. Three kernels forward, three
/// backward:
///  `sums_T`      partial sums over rows of x - x[0] and its square (Chan, Golub, LeVeque 1983: shifted data)
///  `statistics`  mean and 1 / sqrt(var + eps) of each channel; running ones; scale, bias or offset, mean
///  `apply_T`     y
///  `gradient_sums_T`  partial sums over rows of dz and dz (x - mean); dz = dy where y > 0, dy the sum of the gradients
///                     of up to two readers; writes dz where the residual or what follows needs it
///  `coefficients`     gradients of weight and bias; what makes dx of dz and x
///  `gradient_T`       dx
/// Those of `relu_T` make y once more, those of `relu_result_T` read it, those of `two_T` add two gradients.
/// Each thread has one pack of channels and every n-th row. Sums over rows are in single precision within a thread and
/// a block, in double precision over blocks, always in the same order.
extern const KernelSource kBatchNormKernels;

}  // namespace autopar
