#pragma once

#include "kernels/kernel_source.hpp"

namespace autopar::kernels {

/// Launch shape of the casts to 8 bits.
struct Fp8CastShape {
  static constexpr unsigned kTile = 128;    ///< rows and columns of a block
  static constexpr unsigned kThreads = 16;  ///< threads in x and in y
};
static_assert(Fp8CastShape::kTile == 128 && Fp8CastShape::kThreads == 16, "as in the text");

inline constexpr char kFp8CastText[] = R"(
constexpr int kTile = 128, kThreads = 16;

// The formats' mantissa bits, exponent bias and largest number.
struct E4M3 { static constexpr int kMantissa = 3, kBias = 7; static constexpr float kLargest = 448; };
struct E5M2 { static constexpr int kMantissa = 2, kBias = 15; static constexpr float kLargest = 57344; };

// Two numbers in 8 bits each, rounded to nearest even, the first in the low byte. Beyond the largest: the largest.
#if __CUDA_ARCH__ >= 890
__device__ inline unsigned two_in_8_bits(float first, float second, E4M3) {
  unsigned short two;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(second), "f"(first));
  return two;
}
__device__ inline unsigned two_in_8_bits(float first, float second, E5M2) {
  unsigned short two;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(two) : "f"(second), "f"(first));
  return two;
}
#else
template <class F> __device__ inline unsigned in_8_bits(float x, F) {
  const unsigned bits = __float_as_uint(x), sign = bits >> 24 & 0x80;
  float size = __uint_as_float(bits & 0x7fffffff);
  if (x != x) return 0x7f;
  if (size > F::kLargest) size = F::kLargest;
  int exponent = max((int)(__float_as_uint(size) >> 23) - 127, 1 - F::kBias);
  const float unit = __uint_as_float((unsigned)(exponent - F::kMantissa + 127) << 23);
  const float in_units = size / unit;
  int whole = (int)in_units;
  const float rest = in_units - whole;
  if (rest > 0.5f || (rest == 0.5f && whole % 2 == 1)) ++whole;
  return sign | (unsigned)(whole + (exponent + F::kBias - 1) * (1 << F::kMantissa));
}
template <class F> __device__ inline unsigned two_in_8_bits(float first, float second, F format) {
  return in_8_bits(first, format) | in_8_bits(second, format) << 8;
}
#endif

// A thread casts 4 rows of a pack of 8 numbers, twice. Rows leave at once, columns by way of shared memory.
template <class F, bool kRows, bool kColumns>
__device__ void cast(const Words<Brain>* from, uint2* by_rows, unsigned* by_columns, const float* scale, unsigned* most,
                     int rows, int columns, int pitch) {
  __shared__ unsigned tile[kTile][kTile / 4 + 1];
  const int column = blockIdx.x * kTile + threadIdx.x * 8, packs = columns / 8;
  const float factor = *scale;
  unsigned largest = 0;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int of_tile = (part * kThreads + threadIdx.y) * 4, row = blockIdx.y * kTile + of_tile;
    Words<Brain> taken[4];
#pragma unroll
    for (int r = 0; r < 4; ++r)
      taken[r] = row + r < rows && column < columns ? from[(long long)(row + r) * packs + column / 8] : Words<Brain>{};
    unsigned bytes[4][2];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int w = 0; w < 4; ++w)
        largest = max(largest, max(taken[r].at[w] & 0x7fff, taken[r].at[w] >> 16 & 0x7fff));
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int v = 4 * h;
        bytes[r][h] = two_in_8_bits(taken[r][v] * factor, taken[r][v + 1] * factor, F()) |
                      two_in_8_bits(taken[r][v + 2] * factor, taken[r][v + 3] * factor, F()) << 16;
      }
      if (kRows && row + r < rows && column < columns)
        by_rows[(long long)(row + r) * packs + column / 8] = make_uint2(bytes[r][0], bytes[r][1]);
    }
    if (!kColumns) continue;
#pragma unroll
    for (int v = 0; v < 8; ++v) {
      unsigned word = 0;
#pragma unroll
      for (int r = 0; r < 4; ++r) word |= (bytes[r][v / 4] >> v % 4 * 8 & 0xff) << 8 * r;
      tile[threadIdx.x * 8 + v][of_tile / 4] = word;
    }
  }
  // One atomic operation a block: those of all warps would take a tenth of the time.
  __shared__ unsigned of_warps[kThreads * kThreads / 32];
  const int thread = threadIdx.y * kThreads + threadIdx.x;
  for (int by = 16; most && by > 0; by /= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, by));
  if (thread % 32 == 0) of_warps[thread / 32] = largest;
  __syncthreads();
  if (most && thread == 0) {
    for (int warp = 1; warp < kThreads * kThreads / 32; ++warp) largest = max(largest, of_warps[warp]);
    atomicMax(most, largest << 16);
  }
  if (kColumns) {
    const int word = thread % 32, row = blockIdx.y * kTile + word * 4;
    for (int c = thread / 32; c < kTile; c += kThreads * kThreads / 32) {
      const int at = blockIdx.x * kTile + c;
      if (at < columns && row < pitch) by_columns[((long long)at * pitch + row) / 4] = tile[c][word];
    }
  }
}

#define KERNELS(F, name)                                                                                              \
  extern "C" __global__ void __launch_bounds__(kThreads * kThreads) cast_to_##name(                                   \
      const Words<Brain>* from, uint2* by_rows, unsigned* by_columns, const float* scale, unsigned* most, int rows,   \
      int columns, int pitch) {                                                                                       \
    if (by_rows && by_columns)                                                                                        \
      cast<F, true, true>(from, by_rows, by_columns, scale, most, rows, columns, pitch);                              \
    else if (by_rows)                                                                                                 \
      cast<F, true, false>(from, by_rows, by_columns, scale, most, rows, columns, pitch);                             \
    else                                                                                                              \
      cast<F, false, true>(from, by_rows, by_columns, scale, most, rows, columns, pitch);                             \
  }
KERNELS(E4M3, e4m3)
KERNELS(E5M2, e5m2)
)";

/// CUDA C that casts a bf16 matrix [rows, columns] to 8 bits in one pass, `columns` a multiple of 8.
/// - `cast_to_F`: each number times *scale, rounded to nearest even, saturating. NaN stays NaN.
///   - `by_rows` [rows, columns] and `by_columns` [columns, pitch], its transpose; null: not wanted. `pitch` is a
///   multiple
///     of 4 and at least `rows`; what is beyond the rows is 0.
///   - `*most`, as a float: at least the largest magnitude, infinite or NaN if a number is; null: not wanted.
inline constexpr KernelSource kFp8CastKernels{"fp8_cast.cu", kFp8CastText};

}  // namespace autopar::kernels
