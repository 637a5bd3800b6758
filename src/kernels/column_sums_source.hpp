#pragma once

#include "kernels/kernel_source.hpp"

namespace autopar::kernels {

/// Launch shape of the column-sum kernels.
struct ColumnSumsShape {
  static constexpr unsigned kPacks = 32;                   ///< packs of a block: threads in x
  static constexpr unsigned kRows = 8;                     ///< rows that a block reads at a time: threads in y
  static constexpr unsigned kFlight = 8;                   ///< rows that a thread reads before it adds them
  static constexpr unsigned kColumns = 32, kAtATime = 16;  ///< threads (columns x blocks) of `add_up_columns`
};
static_assert(ColumnSumsShape::kPacks == 32 && ColumnSumsShape::kRows == 8 && ColumnSumsShape::kFlight == 8 &&
                  ColumnSumsShape::kColumns == 32 && ColumnSumsShape::kAtATime == 16,
              "as in the text");

inline constexpr char kColumnSumsText[] = R"(
constexpr int kPacks = 32, kRows = 8, kFlight = 8;

template <class T> __device__ void column_sums(const Words<T>* from, float* partial, long long rows, long long stride,
                                               int packs, int of_block) {
  constexpr int V = 16 / sizeof(T);
  const int pack = blockIdx.x * kPacks + threadIdx.x;
  const long long begin = (long long)blockIdx.y * of_block, end = begin + of_block < rows ? begin + of_block : rows;
  float sum[V] = {};
  if (pack < packs) {
    constexpr int kStep = kFlight * kRows;
    const Words<T>* at = from + (begin + threadIdx.y) * stride + pack;
    for (int left = (int)(end - begin - threadIdx.y); left > 0; left -= kStep, at += kStep * stride) {
      Words<T> taken[kFlight];
#pragma unroll
      for (int i = 0; i < kFlight; ++i) taken[i] = i * kRows < left ? at[i * kRows * stride] : Words<T>{};
#pragma unroll
      for (int i = 0; i < kFlight; ++i)
#pragma unroll
        for (int v = 0; v < V; ++v) sum[v] += taken[i][v];
    }
  }
  write_sums_of_block<kRows>(sum, partial, pack, packs);
}

template <class W> __device__ void add_up_columns(const float* partial, int blocks, W* sum, int columns, int adds) {
  const int column = blockIdx.x * 32 + threadIdx.x;
  const float made = sum_column(column < columns ? partial + column : 0, blocks, columns);
  if (threadIdx.y > 0 || column >= columns) return;
  store(sum[column], adds ? number(sum[column]) + made : made);
}

#define KERNELS(T, name)                                                                                               \
  extern "C" __global__ void __launch_bounds__(kPacks * kRows, 4) column_sums_##name(                                  \
      const Words<T>* from, float* partial, long long rows, long long stride, int packs, int of_block) {               \
    column_sums(from, partial, rows, stride, packs, of_block);                                                         \
  }                                                                                                                    \
  extern "C" __global__ void add_up_columns_##name(const float* partial, int blocks, T* sum, int columns, int adds) {  \
    add_up_columns(partial, blocks, sum, columns, adds);                                                               \
  }
KERNELS(float, f32)
KERNELS(Half, f16)
KERNELS(Brain, bf16)
)";

/// CUDA C of sums over the rows of a matrix of packs. `stride` is the distance between rows, in packs.
/// - `column_sums_T`: sums a block's rows [blockIdx.y * of_block, ...) into partial [blocks, columns], fp32.
/// - `add_up_columns_W`: adds up the partial sums in the order of blocks; adds to the destination if `adds`.
inline constexpr KernelSource kColumnSumsKernels{"column_sums.cu", kColumnSumsText};

}  // namespace autopar::kernels
