#include "kernels/column_sums_source.hpp"

namespace autopar {

const KernelSource kColumnSumsKernels{"column_sums.cu", R"(
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
)"};

}  // namespace autopar
