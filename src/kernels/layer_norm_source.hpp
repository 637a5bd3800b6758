#pragma once

#include <cstdint>

#include "kernels/kernel_source.hpp"

namespace autopar {

/// How the gradient's kernels are launched.
struct LayerNormGradientShape {
  static constexpr unsigned kMostThreads = 256;  ///< of a row
  /// Threads of a block, as many as a multiprocessor has registers for. @param packs  of a thread: 1, 2 or 4
  static constexpr unsigned most_of_block(std::int64_t packs) {
    return kMostThreads * (packs == 1 ? 3 : packs == 2 ? 2 : 1);
  }

  static constexpr unsigned kSums = 3;                     ///< over rows
  static constexpr unsigned kColumns = 32, kAtATime = 16;  ///< of what adds up: threads are columns x blocks
  static constexpr LaunchShape adding_up(std::int64_t columns) {
    return {static_cast<unsigned>((columns + kColumns - 1) / kColumns), kSums, kColumns, kAtATime};
  }
};
static_assert(LayerNormGradientShape::kMostThreads == 256 && LayerNormGradientShape::kSums == 3 &&
                  LayerNormGradientShape::kColumns == 32 && LayerNormGradientShape::kAtATime == 16,
              "as in the text");

/// The sum s of two tensors [rows, columns] and its layer norm y = weight (s - mean) / sqrt(var + eps) + bias. A block
/// has one row at a time, for the gradient blockDim.y of them; a thread has P packs of a row, every blockDim.x-th. Data
/// are of type T, weight and bias of type W:
///  `add_layer_norm_T_W_P`           s, y, and mean and 1 / sqrt(var + eps) of each row
///  `add_layer_norm_gradient_T_W_P`  the gradient dx of both addends, with that of s added, and partial [blocks, 3,
///                                   columns], fp32: sums over rows of the gradients of weight and bias, and of dx as
///                                   it is stored
///  `add_layer_norm_sums_W`          adds those up; those of dx in single precision
///
/// `dropout_add_layer_norm_T_W_P` and `dropout_add_layer_norm_gradient_T_W_P` do so where elements of the first addend
/// are dropped, and the others scaled. Element e is kept if word e % 4 of Philox 4x32-10 is below `kept_below`, with
/// the seed, or the one at `seed_at`, as the key and e / 4 as the counter. No mask is stored: the gradient draws again.
/// Then dx is that of the second addend, `dropped` that of the first, and the last sums are over the latter.
/// @source Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"
extern const KernelSource kLayerNormKernels;

}  // namespace autopar
