#pragma once

#include "kernels/kernel_source.hpp"

namespace autopar::kernels {

/// Of two tensors of the same sizes: rows of `inner` packs, which lie next to each other in both, at places given by up
/// to three outer dims. In packs of 16 bytes.
struct StridedRows {
  static constexpr int kDims = 3;
  long long inner = 1;
  long long sizes[kDims] = {1, 1, 1};  ///< outermost first
  long long to[kDims] = {0, 0, 0}, from[kDims] = {0, 0, 0};
};

inline constexpr char kStridedCopyText[] = R"(
struct Rows { long long inner, sizes[3], to[3], from[3]; };
extern "C" __global__ void copy_rows(uint4* to, const uint4* from, const Rows rows, unsigned packs) {
  const unsigned inner = rows.inner, second = rows.sizes[2], first = rows.sizes[1];
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < packs; i += gridDim.x * blockDim.x) {
    const unsigned row = i / inner, at = i - row * inner;
    const unsigned outer = row / second, c = row - outer * second;
    const unsigned a = outer / first, b = outer - a * first;
    to[a * rows.to[0] + b * rows.to[1] + c * rows.to[2] + at] =
        from[a * rows.from[0] + b * rows.from[1] + c * rows.from[2] + at];
  }
}
)";

/// `copy_rows(to, from, StridedRows, packs)`: of less than 2^31 packs, in 32 bits, as divisions are what it takes
/// longest.
inline constexpr KernelSource kStridedCopyKernels{"strided_copy.cu", kStridedCopyText};

}  // namespace autopar::kernels
