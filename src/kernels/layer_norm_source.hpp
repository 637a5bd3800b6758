#pragma once

#include <cstdint>

#include "kernels/kernel_source.hpp"

namespace autopar::kernels {

/// Launch shape of the backward kernels.
struct LayerNormGradientShape {
  static constexpr unsigned kMostThreads = 256;  ///< threads of a row
  /// Threads of a block, as many as a multiprocessor has registers for. @param packs  packs of a thread: 1, 2 or 4
  static constexpr unsigned most_of_block(std::int64_t packs) {
    return kMostThreads * (packs == 1 ? 3 : packs == 2 ? 2 : 1);
  }

  static constexpr unsigned kSums = 3;                     ///< sums over rows: gradients of weight and bias, and dx
  static constexpr unsigned kColumns = 32, kAtATime = 16;  ///< threads (columns x blocks) of `add_layer_norm_sums`
  static constexpr LaunchShape adding_up(std::int64_t columns) {
    return {static_cast<unsigned>((columns + kColumns - 1) / kColumns), kSums, kColumns, kAtATime};
  }
};
static_assert(LayerNormGradientShape::kMostThreads == 256 && LayerNormGradientShape::kSums == 3 &&
                  LayerNormGradientShape::kColumns == 32 && LayerNormGradientShape::kAtATime == 16,
              "as in the text");

inline constexpr char kLayerNormText[] = R"(
constexpr int kMostWarps = 8, kMostRows = 24;  // of a row, and of a block

// Over the lanes of a warp, valid in all of them.
__device__ inline void sum_over_warp(float (&own)[1]) {
  for (int part = 16; part > 0; part /= 2) own[0] += __shfl_xor_sync(~0u, own[0], part);
}
// The first one's sum is valid in the lower lanes, the second one's in the others: half as many shuffles.
__device__ inline void sum_over_warp(float (&own)[2]) {
  const bool is_upper = threadIdx.x & 16;
  float sum = (is_upper ? own[1] : own[0]) + __shfl_xor_sync(~0u, is_upper ? own[0] : own[1], 16);
  for (int part = 8; part > 0; part /= 2) sum += __shfl_xor_sync(~0u, sum, part);
  own[0] = own[1] = sum;
}

// Of N numbers over the threads of a row, whole warps, valid in all of them. Calls take turns with two shared rows: one
// barrier is enough.
template <int N> __device__ inline void sum_over_threads(float (&own)[N], int turn) {
  __shared__ Pack<float> shared[2][kMostRows][N][kMostWarps / 4];
  Pack<float> (&of_row)[N][kMostWarps / 4] = shared[turn % 2][threadIdx.y];
  const int warp = threadIdx.x / 32;
  sum_over_warp(own);
#pragma unroll
  for (int n = 0; n < N; ++n) {
    float* const of_warps = of_row[n][0].at;
    if (threadIdx.x % 32 == n * 16) of_warps[warp] = own[n];
    if (turn < 2 && threadIdx.x < kMostWarps && threadIdx.x >= blockDim.x / 32) of_warps[threadIdx.x] = 0;
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < N; ++n) {
    own[n] = 0;
#pragma unroll
    for (int i = 0; i < kMostWarps; ++i) own[n] += of_row[n][i / 4].at[i % 4];
  }
}

// The numbers of a thread's V columns in a row of weights.
template <class W, int V> struct Weights {
  static constexpr int kOfPack = 16 / sizeof(W);
  Words<W> packs[V / kOfPack];
  __device__ void take(const W* row, int pack) {
#pragma unroll
    for (int i = 0; i < V / kOfPack; ++i) packs[i] = ((const Words<W>*)row)[pack * (V / kOfPack) + i];
  }
  __device__ float operator[](int v) const { return packs[v / kOfPack][v % kOfPack]; }
};

// What is dropped of the first addend: nothing, or elements by draws.
struct Nothing {
  static constexpr bool kDrops = false;
};
struct Elements {
  static constexpr bool kDrops = true;
  unsigned long long seed;
  unsigned kept_below;
  float scale;
  __device__ Elements(const unsigned long long* seed_at, unsigned long long value, unsigned below, float by)
      : seed(seed_at ? *seed_at : value), kept_below(below), scale(by) {}
  // Draws for a pack's elements.
  template <int V> __device__ inline void draw(long long pack, unsigned (&drawn)[V]) const {
#pragma unroll
    for (int part = 0; part < V; part += 4) {
      const long long counter = (pack * V + part) / 4;
      unsigned word[4] = {(unsigned)counter, (unsigned)(counter >> 32), 0, 0};
      unsigned key[2] = {(unsigned)seed, (unsigned)(seed >> 32)};
#pragma unroll
      for (int round = 0; round < 10; ++round) {
        const unsigned long long first = 0xD2511F53ull * word[0], second = 0xCD9E8D57ull * word[2];
        word[0] = (unsigned)(second >> 32) ^ word[1] ^ key[0];
        word[1] = (unsigned)second;
        word[2] = (unsigned)(first >> 32) ^ word[3] ^ key[1];
        word[3] = (unsigned)first;
        key[0] += 0x9E3779B9;
        key[1] += 0xBB67AE85;
      }
#pragma unroll
      for (int v = 0; v < 4; ++v) drawn[part + v] = word[v];
    }
  }
  __device__ inline float kept(float element, unsigned drawn) const { return drawn < kept_below ? element * scale : 0; }
};

template <int P, class T, class W, class Drop>
__device__ void add_layer_norm(const T* input, const T* residual, const W* weight, const W* bias, T* sum, T* result,
                               float* statistics, long long rows, int columns, float eps, const Drop& drop) {
  constexpr int V = 16 / sizeof(T);
  const int packs = columns / V;
  const long long row = blockIdx.x;
  Words<T> of_sum[P];
  float of_row[1] = {};
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int pack = p * blockDim.x + threadIdx.x;
    if (pack >= packs) continue;
    const long long at = row * packs + pack;
    const Words<T> taken = ((const Words<T>*)input)[at], added = ((const Words<T>*)residual)[at];
    unsigned drawn[V];
    if constexpr (Drop::kDrops) drop.draw(at, drawn);
    const auto summed = [&](int v) {
      if constexpr (Drop::kDrops) return drop.kept(taken[v], drawn[v]) + added[v];
      return taken[v] + added[v];
    };
#pragma unroll
    for (int v = 0; v < V; v += 2) {
      of_sum[p].put(v, summed(v), summed(v + 1));
      of_row[0] += of_sum[p][v];
      of_row[0] += of_sum[p][v + 1];
    }
    ((Words<T>*)sum)[at] = of_sum[p];
  }
  sum_over_threads(of_row, 0);
  const float mean = of_row[0] / columns;
  float squares[1] = {};
#pragma unroll
  for (int p = 0; p < P; ++p) {
    if (p * blockDim.x + threadIdx.x >= packs) continue;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float by = of_sum[p][v] - mean;
      squares[0] += by * by;
    }
  }
  sum_over_threads(squares, 1);
  const float inverse = rsqrtf(squares[0] / columns + eps);
  if (threadIdx.x == 0) {
    statistics[row] = mean;
    statistics[rows + row] = inverse;
  }
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int pack = p * blockDim.x + threadIdx.x;
    if (pack >= packs) continue;
    Weights<W, V> factor, addend;
    factor.take(weight, pack);
    addend.take(bias, pack);
    const auto normalised = [&](int v) { return (of_sum[p][v] - mean) * inverse * factor[v] + addend[v]; };
    Words<T> made;
#pragma unroll
    for (int v = 0; v < V; v += 2) made.put(v, normalised(v), normalised(v + 1));
    ((Words<T>*)result)[row * packs + pack] = made;
  }
}

// What a thread reads of a row for its gradient.
template <class T, int P> struct RowPart {
  Words<T> dy[P], ds[P], sum[P];
  float mean, inverse;
};
template <class T, int P>
__device__ inline void take_part(const T* dy, const T* ds, const T* sum, const float* statistics, int row, int rows,
                                 int packs, RowPart<T, P>& made) {
  if (row >= rows) return;
  made.mean = statistics[row];
  made.inverse = statistics[rows + row];
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int pack = p * blockDim.x + threadIdx.x;
    if (pack >= packs) continue;
    const long long at = (long long)row * packs + pack;
    made.dy[p] = ((const Words<T>*)dy)[at];
    made.sum[p] = ((const Words<T>*)sum)[at];
    made.ds[p] = ds ? ((const Words<T>*)ds)[at] : Words<T>{};
  }
}

// Threads of a block for the gradient.
template <int P> constexpr int kMostOfBlock = 256 * (P == 1 ? 3 : P == 2 ? 2 : 1);

// V numbers a thread, added up over the rows of a block of at most M threads, in their order; `to` null: nowhere.
template <int M, int V> __device__ inline void write_sums_of_rows(float (&sum)[V], float* to) {
  if (blockDim.y == 1) {
    if (to) write_sums(sum, to);
    return;
  }
  __shared__ float shared[V][M];
  const int all = blockDim.x * blockDim.y, own = threadIdx.y * blockDim.x + threadIdx.x;
  for (int v = 0; v < V; ++v) shared[v][own] = sum[v];
  __syncthreads();
  if (threadIdx.y == 0 && to) {
    for (int other = own + blockDim.x; other < all; other += blockDim.x)
      for (int v = 0; v < V; ++v) sum[v] += shared[v][other];
    write_sums(sum, to);
  }
  __syncthreads();
}

// With h = (s - mean) / sqrt(var + eps) and g = dy weight: dx = ds + (g - mean(g) - h mean(g h)) / sqrt(var + eps). The
// next row is on its way while the threads of a block wait for each other, where they have registers for it.
template <int P, class T, class W, class Drop>
__device__ void add_layer_norm_gradient(const T* dy, const T* ds, const T* sum, const W* weight,
                                        const float* statistics, T* dx, float* partial, int rows, int columns,
                                        T* dropped, const Drop& drop) {
  constexpr int V = 16 / sizeof(T);
  constexpr bool kAhead = P == 1;
  const int packs = columns / V;
  const float share = 1.f / columns;
  Weights<W, V> factor[P];
  float of_weight[P][V] = {}, of_bias[P][V] = {}, of_dx[P][V] = {};
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int pack = p * blockDim.x + threadIdx.x;
    if (pack < packs) factor[p].take(weight, pack);
  }
  RowPart<T, P> now, next;
  const int step = gridDim.x * blockDim.y;
  int row = blockIdx.x * blockDim.y + threadIdx.y;
  if (kAhead) take_part(dy, ds, sum, statistics, row, rows, packs, now);
  int turn = 0;
  for (; row - (int)threadIdx.y < rows; row += step, ++turn) {  // all threads of a block go round as often
    if (!kAhead) take_part(dy, ds, sum, statistics, row, rows, packs, now);
    float of_g[2] = {};  // sums of g and g h
#pragma unroll
    for (int p = 0; p < P; ++p) {
      if (row >= rows || p * blockDim.x + threadIdx.x >= packs) continue;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const float of_y = now.dy[p][v], h = (now.sum[p][v] - now.mean) * now.inverse;
        of_weight[p][v] += of_y * h;
        of_bias[p][v] += of_y;
        of_g[0] += of_y * factor[p][v];
        of_g[1] += of_y * factor[p][v] * h;
      }
    }
    if (kAhead) take_part(dy, ds, sum, statistics, row + step, rows, packs, next);
    sum_over_threads(of_g, turn);
    const float mean_g = of_g[0] * share, mean_gh = of_g[1] * share;
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const int pack = p * blockDim.x + threadIdx.x;
      if (row >= rows || pack >= packs) continue;
      const long long at = (long long)row * packs + pack;
      Words<T> made, scaled;
      unsigned drawn[V];
      if constexpr (Drop::kDrops) drop.draw(at, drawn);
      const auto gradient = [&](int v) {
        const float h = (now.sum[p][v] - now.mean) * now.inverse;
        return (now.dy[p][v] * factor[p][v] - mean_g - h * mean_gh) * now.inverse + now.ds[p][v];
      };
#pragma unroll
      for (int v = 0; v < V; v += 2) {
        const float first = gradient(v), second = gradient(v + 1);
        made.put(v, first, second);
        if constexpr (Drop::kDrops) scaled.put(v, drop.kept(first, drawn[v]), drop.kept(second, drawn[v + 1]));
        const Words<T>& of_first_addend = Drop::kDrops ? scaled : made;
        of_dx[p][v] += of_first_addend[v];
        of_dx[p][v + 1] += of_first_addend[v + 1];
      }
      ((Words<T>*)dx)[at] = made;
      if constexpr (Drop::kDrops) ((Words<T>*)dropped)[at] = scaled;
    }
    if (kAhead) now = next;
  }
  float* const of_block = partial + 3ll * blockIdx.x * columns;
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int pack = p * blockDim.x + threadIdx.x;
    float* const to = pack < packs ? of_block + pack * V : (float*)0;
    write_sums_of_rows<kMostOfBlock<P>>(of_weight[p], to);
    write_sums_of_rows<kMostOfBlock<P>>(of_bias[p], to ? to + columns : to);
    write_sums_of_rows<kMostOfBlock<P>>(of_dx[p], to ? to + 2 * columns : to);
  }
}

// Blocks are 32 columns x the sums.
template <class W> __device__ void add_up(const float* partial, int blocks, W* dweight, W* dbias, float* of_dx,
                                          int columns) {
  const int column = blockIdx.x * 32 + threadIdx.x;
  const float* const first = partial + (long long)blockIdx.y * columns + column;
  const float made = sum_column(column < columns ? first : 0, blocks, 3ll * columns);
  if (threadIdx.y > 0 || column >= columns) return;
  if (blockIdx.y == 2) of_dx[column] = made;
  else store((blockIdx.y == 0 ? dweight : dbias)[column], made);
}

#define KERNELS(T, W, P, name)                                                                                         \
  extern "C" __global__ void add_layer_norm_##name(const T* input, const T* residual, const W* weight, const W* bias,  \
                                                   T* sum, T* result, float* statistics, long long rows, int columns,  \
                                                   float eps) {                                                        \
    add_layer_norm<P>(input, residual, weight, bias, sum, result, statistics, rows, columns, eps, Nothing());          \
  }                                                                                                                    \
  extern "C" __global__ void dropout_add_layer_norm_##name(                                                            \
      const T* input, const T* residual, const W* weight, const W* bias, T* sum, T* result, float* statistics,         \
      long long rows, int columns, float eps, const unsigned long long* seed_at, unsigned long long seed,              \
      unsigned kept_below, float scale) {                                                                              \
    const Elements dropped(seed_at, seed, kept_below, scale);                                                          \
    add_layer_norm<P>(input, residual, weight, bias, sum, result, statistics, rows, columns, eps, dropped);            \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(kMostOfBlock<P>, 1)                                                     \
      add_layer_norm_gradient_##name(const T* dy, const T* ds, const T* sum, const W* weight, const float* statistics, \
                                     T* dx, float* partial, int rows, int columns) {                                   \
    add_layer_norm_gradient<P>(dy, ds, sum, weight, statistics, dx, partial, rows, columns, (T*)0, Nothing());         \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(kMostOfBlock<P>, 1)                                                     \
      dropout_add_layer_norm_gradient_##name(                                                                          \
          const T* dy, const T* ds, const T* sum, const W* weight, const float* statistics, T* dx, float* partial,     \
          int rows, int columns, T* dropped, const unsigned long long* seed_at, unsigned long long seed,               \
          unsigned kept_below, float scale) {                                                                          \
    add_layer_norm_gradient<P>(dy, ds, sum, weight, statistics, dx, partial, rows, columns, dropped,                   \
                               Elements(seed_at, seed, kept_below, scale));                                            \
  }
#define OF_TYPES(T, W, name) KERNELS(T, W, 1, name##_1) KERNELS(T, W, 2, name##_2) KERNELS(T, W, 4, name##_4)
OF_TYPES(float, float, f32_f32)
OF_TYPES(Half, float, f16_f32)
OF_TYPES(Half, Half, f16_f16)
OF_TYPES(Brain, float, bf16_f32)
OF_TYPES(Brain, Brain, bf16_bf16)

#define SUMS(W, name)                                                                                                  \
  extern "C" __global__ void add_layer_norm_sums_##name(const float* partial, int blocks, W* dweight, W* dbias,        \
                                                        float* of_dx, int columns) {                                   \
    add_up(partial, blocks, dweight, dbias, of_dx, columns);                                                           \
  }
SUMS(float, f32)
SUMS(Half, f16)
SUMS(Brain, bf16)
)";

/// The sum s of two tensors [rows, columns] and its layer norm y = weight (s - mean) / sqrt(var + eps) + bias. A block
/// has one row at a time; in the backward it has blockDim.y rows. A thread has P packs of a row, every blockDim.x-th.
/// Data are of type T, weight and bias of type W.
/// - `add_layer_norm_T_W_P`: s, y, and mean and 1 / sqrt(var + eps) of each row.
/// - `add_layer_norm_gradient_T_W_P`: the gradient dx of both addends, which includes the gradient of s. Also partial
///   [blocks, 3, columns], fp32: sums over rows of the gradients of weight and bias, and of the stored dx.
/// - `add_layer_norm_sums_W`: adds up the partial sums; sums of dx stay in single precision.
///
/// `dropout_add_layer_norm_T_W_P` and `dropout_add_layer_norm_gradient_T_W_P` do the same with dropout of the first
/// addend. Element e is kept, and scaled, if word e % 4 of Philox 4x32-10 is below `kept_below`. The Philox key is the
/// seed, or the seed at `seed_at`; the counter is e / 4. No mask is stored: the backward draws again. With dropout, dx
/// is the gradient of the second addend, `dropped` is the gradient of the first, and the third sums are over `dropped`.
/// @source Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"
inline constexpr KernelSource kLayerNormKernels{"layer_norm.cu", kLayerNormText};

}  // namespace autopar::kernels
