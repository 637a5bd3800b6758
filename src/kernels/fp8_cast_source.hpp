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

// The numbers of a block by columns: four of a column in a word.
typedef unsigned Tile[kTile][kTile / 4 + 1];

// Puts 8 columns of the four rows that begin with `row` of the tile.
__device__ inline void put_in_tile(Tile& tile, const unsigned (&bytes)[4][2], int row) {
#pragma unroll
  for (int v = 0; v < 8; ++v) {
    unsigned word = 0;
#pragma unroll
    for (int r = 0; r < 4; ++r) word |= (bytes[r][v / 4] >> v % 4 * 8 & 0xff) << 8 * r;
    tile[threadIdx.x * 8 + v][row / 4] = word;
  }
}

__device__ inline void write_columns(const Tile& tile, unsigned* by_columns, int columns, int pitch) {
  __syncthreads();
  const int thread = threadIdx.y * kThreads + threadIdx.x, word = thread % 32, row = blockIdx.y * kTile + word * 4;
  for (int c = thread / 32; c < kTile; c += kThreads * kThreads / 32) {
    const int at = blockIdx.x * kTile + c;
    if (at < columns && row < pitch) by_columns[((long long)at * pitch + row) / 4] = tile[c][word];
  }
}

// A thread casts 4 rows of a pack of 8 numbers, twice. Rows leave at once, columns by way of shared memory.
template <class F, bool kRows, bool kColumns>
__device__ void cast(const Words<Brain>* from, uint2* by_rows, unsigned* by_columns, const float* scale, unsigned* most,
                     int rows, int columns, int pitch) {
  __shared__ Tile tile;
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
    if (kColumns) put_in_tile(tile, bytes, of_tile);
  }
  if (most) tell_largest<kThreads * kThreads>(largest, most);
  if (kColumns) write_columns(tile, by_columns, columns, pitch);
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

extern "C" __global__ void __launch_bounds__(kThreads * kThreads)
transpose(const uint2* from, unsigned* by_columns, int rows, int columns, int pitch) {
  __shared__ Tile tile;
  const int column = blockIdx.x * kTile + threadIdx.x * 8, packs = columns / 8;
  uint2 taken[2][4];
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int row = blockIdx.y * kTile + (part * kThreads + threadIdx.y) * 4;
#pragma unroll
    for (int r = 0; r < 4; ++r)
      taken[part][r] =
          row + r < rows && column < columns ? from[(long long)(row + r) * packs + column / 8] : make_uint2(0, 0);
  }
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    unsigned bytes[4][2];
#pragma unroll
    for (int r = 0; r < 4; ++r) bytes[r][0] = taken[part][r].x, bytes[r][1] = taken[part][r].y;
    put_in_tile(tile, bytes, (part * kThreads + threadIdx.y) * 4);
  }
  write_columns(tile, by_columns, columns, pitch);
}
)";

/// CUDA C that casts a bf16 matrix [rows, columns] to 8 bits in one pass, `columns` a multiple of 8.
/// - `cast_to_F`: each number times *scale, rounded to nearest even, saturating. NaN stays NaN.
///   - `by_rows` [rows, columns] and `by_columns` [columns, pitch], its transpose; null: not wanted. `pitch` is a
///   multiple
///     of 4 and at least `rows`; what is beyond the rows is 0.
///   - `*most`, as a float: at least the largest magnitude, infinite or NaN if a number is; null: not wanted.
/// - `transpose`: `by_columns` of a matrix that is in 8 bits.
inline constexpr KernelSource kFp8CastKernels{"fp8_cast.cu", kFp8CastText};

}  // namespace autopar::kernels
