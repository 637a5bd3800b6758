#pragma once

#include "torch/device/kernel_source.hpp"

namespace autopar {

/// The sum s of two tensors [rows, columns] and its layer norm y = weight (s - mean) / sqrt(var + eps) + bias. A block
/// has one row at a time, a thread P packs of it, every blockDim-th. Data are of type T, weight and bias of type W:
///  `add_layer_norm_T_W_P`           s, y, and mean and 1 / sqrt(var + eps) of each row
///  `add_layer_norm_gradient_T_W_P`  the gradient of both addends, with that of s added, and partial sums over rows of
///  those
///                                   of weight and bias
///  `add_layer_norm_weights_W`       adds those up
inline constexpr char kLayerNormText[] = R"(
// Of two numbers over a block of whole warps, valid in all its threads. Calls take turns with two shared rows, so that one
// barrier is enough.
__device__ inline float2 sum_over_block(float2 own, int turn) {
  __shared__ float2 shared[2][32];
  for (int part = 16; part > 0; part /= 2) {
    own.x += __shfl_xor_sync(~0u, own.x, part);
    own.y += __shfl_xor_sync(~0u, own.y, part);
  }
  const int warps = blockDim.x / 32;
  if (threadIdx.x % 32 == 0) shared[turn % 2][threadIdx.x / 32] = own;
  __syncthreads();
  float2 sum = make_float2(0, 0);
  for (int warp = 0; warp < warps; ++warp) {
    sum.x += shared[turn % 2][warp].x;
    sum.y += shared[turn % 2][warp].y;
  }
  return sum;
}

// The numbers of a thread's columns in one row of weights; `absent` where there are none.
template <class W, int V> __device__ inline void take_numbers(const W* row, int pack, float absent, float (&made)[V]) {
  for (int v = 0; v < V; ++v) made[v] = row ? number(row[pack * V + v]) : absent;
}

template <class T, class W, int P>
__device__ void add_layer_norm(const T* input, const T* residual, const W* weight, const W* bias, T* sum, T* result,
                               float* statistics, long long rows, int columns, float eps) {
  constexpr int V = 16 / sizeof(T);
  const int packs = columns / V;
  const long long row = blockIdx.x;
  Pack<T> taken[P];
  float of_row = 0;
  for (int p = 0; p < P; ++p) {
    const int pack = p * blockDim.x + threadIdx.x;
    if (pack >= packs) continue;
    const long long at = row * packs + pack;
    taken[p] = ((const Pack<T>*)input)[at];
    const Pack<T> added = ((const Pack<T>*)residual)[at];
    for (int v = 0; v < V; ++v) {
      store(taken[p].at[v], number(taken[p].at[v]) + number(added.at[v]));
      of_row += number(taken[p].at[v]);
    }
    ((Pack<T>*)sum)[at] = taken[p];
  }
  const float mean = sum_over_block(make_float2(of_row, 0), 0).x / columns;
  float squares = 0;
  for (int p = 0; p < P; ++p) {
    if (p * blockDim.x + threadIdx.x >= packs) continue;
    for (int v = 0; v < V; ++v) {
      const float by = number(taken[p].at[v]) - mean;
      squares += by * by;
    }
  }
  const float inverse = rsqrtf(sum_over_block(make_float2(squares, 0), 1).x / columns + eps);
  if (threadIdx.x == 0) {
    statistics[row] = mean;
    statistics[rows + row] = inverse;
  }
  for (int p = 0; p < P; ++p) {
    const int pack = p * blockDim.x + threadIdx.x;
    if (pack >= packs) continue;
    float factor[V], addend[V];
    take_numbers(weight, pack, 1, factor);
    take_numbers(bias, pack, 0, addend);
    for (int v = 0; v < V; ++v)
      store(taken[p].at[v], (number(taken[p].at[v]) - mean) * inverse * factor[v] + addend[v]);
    ((Pack<T>*)result)[row * packs + pack] = taken[p];
  }
}

// With h = (s - mean) / sqrt(var + eps) and g = dy weight: dx = ds + (g - mean(g) - h mean(g h)) / sqrt(var + eps).
template <class T, class W, int P>
__device__ void add_layer_norm_gradient(const T* dy, const T* ds, const T* sum, const W* weight,
                                        const float* statistics, T* dx, float* partial, long long rows, int columns) {
  constexpr int V = 16 / sizeof(T);
  const int packs = columns / V;
  float factor[P][V], of_weight[P][V] = {}, of_bias[P][V] = {};
  for (int p = 0; p < P; ++p) {
    const int pack = p * blockDim.x + threadIdx.x;
    if (pack < packs) take_numbers(weight, pack, 1, factor[p]);
  }
  int turn = 0;
  for (long long row = blockIdx.x; row < rows; row += gridDim.x, ++turn) {
    const float mean = statistics[row], inverse = statistics[rows + row];
    Pack<T> gradient[P], taken[P], passed[P];
    float2 own = make_float2(0, 0);
    for (int p = 0; p < P; ++p) {
      const int pack = p * blockDim.x + threadIdx.x;
      if (pack >= packs) continue;
      const long long at = row * packs + pack;
      gradient[p] = ((const Pack<T>*)dy)[at];
      taken[p] = ((const Pack<T>*)sum)[at];
      if (ds) passed[p] = ((const Pack<T>*)ds)[at];
    }
    for (int p = 0; p < P; ++p) {
      if (p * blockDim.x + threadIdx.x >= packs) continue;
      for (int v = 0; v < V; ++v) {
        const float of_y = number(gradient[p].at[v]), h = (number(taken[p].at[v]) - mean) * inverse;
        of_weight[p][v] += of_y * h;
        of_bias[p][v] += of_y;
        own.x += of_y * factor[p][v];
        own.y += of_y * factor[p][v] * h;
      }
    }
    const float2 means = sum_over_block(own, turn);
    const float mean_g = means.x / columns, mean_gh = means.y / columns;
    for (int p = 0; p < P; ++p) {
      const int pack = p * blockDim.x + threadIdx.x;
      if (pack >= packs) continue;
      for (int v = 0; v < V; ++v) {
        const float h = (number(taken[p].at[v]) - mean) * inverse;
        float made = (number(gradient[p].at[v]) * factor[p][v] - mean_g - h * mean_gh) * inverse;
        if (ds) made += number(passed[p].at[v]);
        store(gradient[p].at[v], made);
      }
      ((Pack<T>*)dx)[row * packs + pack] = gradient[p];
    }
  }
  float* const own_row = partial + 2ll * blockIdx.x * columns;
  for (int p = 0; p < P; ++p) {
    const int pack = p * blockDim.x + threadIdx.x;
    if (pack >= packs) continue;
    for (int v = 0; v < V; ++v) {
      own_row[pack * V + v] = of_weight[p][v];
      own_row[columns + pack * V + v] = of_bias[p][v];
    }
  }
}

template <class W> __device__ void weights(const float* partial, int blocks, W* dweight, W* dbias, int columns) {
  double of_weight, of_bias;
  sum_blocks(partial, blocks, columns, of_weight, of_bias);
  const int column = blockIdx.x * 32 + threadIdx.x;
  if (threadIdx.y > 0 || column >= columns) return;
  store(dweight[column], (float)of_weight);
  store(dbias[column], (float)of_bias);
}

#define KERNELS(T, W, P, name)                                                                                         \
  extern "C" __global__ void add_layer_norm_##name(const T* input, const T* residual, const W* weight, const W* bias,  \
                                                   T* sum, T* result, float* statistics, long long rows, int columns,  \
                                                   float eps) {                                                        \
    add_layer_norm<T, W, P>(input, residual, weight, bias, sum, result, statistics, rows, columns, eps);               \
  }                                                                                                                    \
  extern "C" __global__ void add_layer_norm_gradient_##name(const T* dy, const T* ds, const T* sum, const W* weight,   \
                                                            const float* statistics, T* dx, float* partial,            \
                                                            long long rows, int columns) {                             \
    add_layer_norm_gradient<T, W, P>(dy, ds, sum, weight, statistics, dx, partial, rows, columns);                     \
  }
#define OF_TYPES(T, W, name) KERNELS(T, W, 1, name##_1) KERNELS(T, W, 2, name##_2) KERNELS(T, W, 4, name##_4)
OF_TYPES(float, float, f32_f32)
OF_TYPES(Half, float, f16_f32)
OF_TYPES(Half, Half, f16_f16)
OF_TYPES(Brain, float, bf16_f32)
OF_TYPES(Brain, Brain, bf16_bf16)

#define WEIGHTS(W, name)                                                                                               \
  extern "C" __global__ void add_layer_norm_weights_##name(const float* partial, int blocks, W* dweight, W* dbias,     \
                                                           int columns) {                                              \
    weights<W>(partial, blocks, dweight, dbias, columns);                                                              \
  }
WEIGHTS(float, f32)
WEIGHTS(Half, f16)
WEIGHTS(Brain, bf16)
)";

inline constexpr KernelSource kLayerNormKernels{"layer_norm.cu", kLayerNormText};

}  // namespace autopar
