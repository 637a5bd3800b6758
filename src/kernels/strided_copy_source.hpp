#pragma once

#include "kernels/kernel_source.hpp"

namespace autopar {

/// Of two tensors of the same sizes: rows of `inner` packs, which lie next to each other in both, at places given by up
/// to three outer dims. In packs of 16 bytes.
struct StridedRows {
  static constexpr int kDims = 3;
  long long inner = 1;
  long long sizes[kDims] = {1, 1, 1};  ///< outermost first
  long long to[kDims] = {0, 0, 0}, from[kDims] = {0, 0, 0};
};

/// `copy_rows(to, from, StridedRows, packs)`: of less than 2^31 packs, in 32 bits, as divisions are what it takes
/// longest.
extern const KernelSource kStridedCopyKernels;

}  // namespace autopar
