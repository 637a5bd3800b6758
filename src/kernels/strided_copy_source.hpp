#pragma once

#include "kernels/kernel_source.hpp"

namespace autopar::kernels {

/// The common row structure of two tensors of the same sizes. Rows of `inner` packs are contiguous in both; up to three
/// outer dims give their places. Units are packs of 16 bytes.
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

/// `copy_rows(to, from, StridedRows, packs)` copies fewer than 2^31 packs. Indices have 32 bits, because divisions take
/// most of the time.
inline constexpr KernelSource kStridedCopyKernels{"strided_copy.cu", kStridedCopyText};

}  // namespace autopar::kernels
