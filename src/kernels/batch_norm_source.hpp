#pragma once

#include "kernels/kernel_source.hpp"

namespace autopar::kernels {

/// Arguments of one launch. Data are [rows, channels] without gaps, with channels contiguous. `Pack` is 16 bytes of
/// data.
struct BatchNormTables {
  static constexpr unsigned kThreads = 256;
};

inline constexpr char kBatchNormText[] = R"(
// ---------------------------------------------------------------- sums over rows

// A block's sums of two numbers a channel, written as row blockIdx.y of [blocks, 2, channels].
template <int V> __device__ void write_block_sums(const float (&first)[V], const float (&second)[V], float* partial,
                                                  int channels) {
  __shared__ float shared[256 * V];
  const int pack = blockIdx.x * blockDim.x + threadIdx.x, width = blockDim.x * V;
  float* const row = partial + 2ll * blockIdx.y * channels;
  for (int part = 0; part < 2; ++part) {
    for (int v = 0; v < V; ++v) shared[threadIdx.y * width + threadIdx.x * V + v] = part == 0 ? first[v] : second[v];
    __syncthreads();
    for (int half = blockDim.y / 2; half > 0; half /= 2) {
      if (threadIdx.y < half) {
        for (int v = 0; v < V; ++v) {
          const int at = threadIdx.y * width + threadIdx.x * V + v;
          shared[at] += shared[at + half * width];
        }
      }
      __syncthreads();
    }
    if (threadIdx.y == 0 && pack * V < channels) {
      for (int v = 0; v < V; ++v) row[part * channels + pack * V + v] = shared[threadIdx.x * V + v];
    }
    __syncthreads();
  }
}

template <class T> __device__ void sums(const T* x, float* partial, long long rows, int channels) {
  constexpr int V = 16 / sizeof(T);
  const int packs = channels / V, pack = blockIdx.x * blockDim.x + threadIdx.x;
  const long long step = (long long)gridDim.y * blockDim.y;
  const Pack<T>* const data = (const Pack<T>*)x;
  float first[V] = {}, second[V] = {};
  if (pack < packs) {
    const Pack<T> shift = data[pack];
    for (long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y; row < rows; row += 4 * step) {
      Pack<T> taken[4];
      for (int i = 0; i < 4; ++i) taken[i] = row + i * step < rows ? data[(row + i * step) * packs + pack] : shift;
      for (int i = 0; i < 4; ++i) {
        for (int v = 0; v < V; ++v) {
          const float by = number(taken[i].at[v]) - number(shift.at[v]);
          first[v] += by;
          second[v] += by * by;
        }
      }
    }
  }
  write_block_sums<V>(first, second, partial, channels);
}

// ---------------------------------------------------------------- forward

// Whether the mean is taken off data before they are scaled.
template <class T> constexpr bool kCentres = sizeof(T) == 4;

// Makes statistics [2, channels] (mean, 1 / sqrt(var + eps)) and affine [3, channels] (scale, bias or offset, mean).
template <class T> __device__ void statistics(const float* partial, int blocks, const T* x, const float* weight,
                                              const float* bias, float* running_mean, float* running_var,
                                              float* statistics, float* affine, long long rows, int channels,
                                              double momentum, double eps) {
  double first, second;
  sum_blocks(partial, blocks, channels, first, second);
  const int channel = blockIdx.x * 32 + threadIdx.x;
  if (threadIdx.y > 0 || channel >= channels) return;
  const double by = first / rows, mean = number(x[channel]) + by;
  const double variance = fmax(second / rows - by * by, 0.0), inverse = rsqrt(variance + eps);
  statistics[channel] = mean;
  statistics[channels + channel] = inverse;
  const double scale = (weight ? weight[channel] : 1.0) * inverse, added = bias ? bias[channel] : 0.0;
  affine[channel] = scale;
  affine[channels + channel] = kCentres<T> ? added : added - scale * mean;
  affine[2 * channels + channel] = mean;
  if (running_mean) running_mean[channel] = (1 - momentum) * running_mean[channel] + momentum * mean;
  if (running_var) {
    const double unbiased = variance * rows / (rows - 1);
    running_var[channel] = (1 - momentum) * running_var[channel] + momentum * unbiased;
  }
}

template <class T> __device__ void apply(const T* x, const T* residual, const float* affine, T* y, long long rows,
                                         int channels, int relu) {
  constexpr int V = 16 / sizeof(T);
  const int packs = channels / V, pack = blockIdx.x * blockDim.x + threadIdx.x;
  if (pack >= packs) return;
  float scale[V], bias[V], mean[V];
  for (int v = 0; v < V; ++v) {
    scale[v] = affine[pack * V + v];
    bias[v] = affine[channels + pack * V + v];
    mean[v] = kCentres<T> ? affine[2 * channels + pack * V + v] : 0.f;
  }
  const long long step = (long long)gridDim.y * blockDim.y;
  for (long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y; row < rows; row += step) {
    const long long at = row * packs + pack;
    Pack<T> made = ((const Pack<T>*)x)[at], added;
    if (residual) added = ((const Pack<T>*)residual)[at];
    for (int v = 0; v < V; ++v) {
      float z = (kCentres<T> ? number(made.at[v]) - mean[v] : number(made.at[v])) * scale[v] + bias[v];
      if (residual) z += number(added.at[v]);
      store(made.at[v], relu && z <= 0 ? 0.f : z);
    }
    ((Pack<T>*)y)[at] = made;
  }
}

// ---------------------------------------------------------------- backward

// What a thread of the backward keeps of its channels.
template <class T, bool kRelu, bool kReadsResult> struct Channels {
  static constexpr int V = 16 / sizeof(T);
  static constexpr bool kMakesResult = kRelu && !kReadsResult;
  float scale[V], bias[V], mean[V];

  __device__ Channels(const float* affine, int channels, int pack) {
    for (int v = 0; v < V; ++v) {
      mean[v] = affine[2 * channels + pack * V + v];
      if constexpr (kMakesResult) {
        scale[v] = affine[pack * V + v];
        bias[v] = affine[channels + pack * V + v];
      }
    }
  }

  __device__ float centred(T x, int v) const { return kCentres<T> ? number(x) - mean[v] : number(x); }
  // The gradient of relu's operand. Without y, whether that was positive is found by making it once more.
  __device__ float passed(float dy, T x, T y, int v) const {
    if (!kRelu) return dy;
    const float z = kReadsResult ? number(y) : centred(x, v) * scale[v] + bias[v];
    return z <= 0 ? 0.f : dy;
  }
};

// With kTwo dy is the sum of both gradients. dz is written where it takes more than a look at x to make it once more,
// and may lie where one of them does.
template <class T, bool kRelu, bool kReadsResult, bool kTwo>
__device__ void gradient_sums(const T* first_dy, const T* second_dy, const T* x, const T* y, const float* affine,
                              float* partial, T* dz, long long rows, int channels) {
  constexpr int V = 16 / sizeof(T);
  constexpr bool kWrites = kReadsResult || kTwo;
  const int packs = channels / V, pack = blockIdx.x * blockDim.x + threadIdx.x;
  const long long step = (long long)gridDim.y * blockDim.y;
  float first[V] = {}, second[V] = {};
  if (pack < packs) {
    const Channels<T, kRelu, kReadsResult> own(affine, channels, pack);
    const Pack<T>*const dys = (const Pack<T>*)first_dy, *const others = (const Pack<T>*)second_dy;
    const Pack<T>*const xs = (const Pack<T>*)x, *const ys = (const Pack<T>*)y;
    const auto take = [&](long long at, Pack<T> of_y, const Pack<T>& other, const Pack<T>& of_x,
                          const Pack<T>& result) {
      for (int v = 0; v < V; ++v) {
        const float given = kTwo ? number(of_y.at[v]) + number(other.at[v]) : number(of_y.at[v]);
        const float passed = own.passed(given, of_x.at[v], result.at[v], v);
        first[v] += passed;
        second[v] += passed * (number(of_x.at[v]) - own.mean[v]);
        if (kWrites) store(of_y.at[v], passed);
      }
      if (kWrites) ((Pack<T>*)dz)[at] = of_y;
    };
    long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y;
    for (; row + step < rows; row += 2 * step) {
      const long long at = row * packs + pack, next = at + step * packs;
      const Pack<T> dy0 = dys[at], dy1 = dys[next], x0 = xs[at], x1 = xs[next];
      const Pack<T> y0 = kReadsResult ? ys[at] : x0, y1 = kReadsResult ? ys[next] : x1;
      const Pack<T> other0 = kTwo ? others[at] : dy0, other1 = kTwo ? others[next] : dy1;
      take(at, dy0, other0, x0, y0);
      take(next, dy1, other1, x1, y1);
    }
    if (row < rows) {
      const long long at = row * packs + pack;
      take(at, dys[at], kTwo ? others[at] : dys[at], xs[at], kReadsResult ? ys[at] : xs[at]);
    }
  }
  write_block_sums<V>(first, second, partial, channels);
}

// dx = factors[0] dz + factors[1] x + factors[2], or with x - mean for x
extern "C" __global__ void batch_norm_coefficients(const float* partial, int blocks, const float* statistics,
                                                   const float* affine, float* dweight, float* dbias, float* factors,
                                                   long long rows, int channels, int centres) {
  double first, second;
  sum_blocks(partial, blocks, channels, first, second);
  const int channel = blockIdx.x * 32 + threadIdx.x;
  if (threadIdx.y > 0 || channel >= channels) return;
  const double inverse = statistics[channels + channel], scale = affine[channel];
  dweight[channel] = second * inverse;
  dbias[channel] = first;
  factors[channel] = scale;
  const double of_x = -scale * inverse * inverse * second / rows;
  factors[channels + channel] = of_x;
  factors[2 * channels + channel] = -scale * first / rows - (centres ? 0 : of_x * statistics[channel]);
}

// Of dz, or of dy, of which dz is made once more.
template <class T, bool kRelu>
__device__ void gradient(const T* dy, const T* x, const float* affine, const float* factors, T* dx, long long rows,
                         int channels) {
  constexpr int V = 16 / sizeof(T);
  const int packs = channels / V, pack = blockIdx.x * blockDim.x + threadIdx.x;
  if (pack >= packs) return;
  const Channels<T, kRelu, false> own(affine, channels, pack);
  float of_z[V], of_x[V], shift[V];
  for (int v = 0; v < V; ++v) {
    of_z[v] = factors[pack * V + v];
    of_x[v] = factors[channels + pack * V + v];
    shift[v] = factors[2 * channels + pack * V + v];
  }
  const auto make = [&](long long at, const Pack<T>& of_y, Pack<T> made) {
    for (int v = 0; v < V; ++v) {
      const float dz = own.passed(number(of_y.at[v]), made.at[v], made.at[v], v);
      store(made.at[v], of_z[v] * dz + (of_x[v] * own.centred(made.at[v], v) + shift[v]));
    }
    ((Pack<T>*)dx)[at] = made;
  };
  const Pack<T>*const dys = (const Pack<T>*)dy, *const xs = (const Pack<T>*)x;
  const long long step = (long long)gridDim.y * blockDim.y;
  long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y;
  for (; row + step < rows; row += 2 * step) {
    const long long at = row * packs + pack, next = at + step * packs;
    const Pack<T> dy0 = dys[at], dy1 = dys[next], x0 = xs[at], x1 = xs[next];
    make(at, dy0, x0);
    make(next, dy1, x1);
  }
  if (row < rows) make(row * packs + pack, dys[row * packs + pack], xs[row * packs + pack]);
}

#define GRADIENT_SUMS(T, kRelu, kReadsResult, kTwo, name)                                                              \
  extern "C" __global__ void batch_norm_gradient_sums_##name(                                                          \
      const T* first_dy, const T* second_dy, const T* x, const T* y, const float* affine, float* partial, T* dz,       \
      long long rows, int channels) {                                                                                  \
    gradient_sums<T, kRelu, kReadsResult, kTwo>(first_dy, second_dy, x, y, affine, partial, dz, rows, channels);       \
  }
#define GRADIENT(T, kRelu, name)                                                                                       \
  extern "C" __global__ void batch_norm_gradient_##name(const T* dy, const T* x, const float* affine,                  \
                                                        const float* factors, T* dx, long long rows, int channels) {   \
    gradient<T, kRelu>(dy, x, affine, factors, dx, rows, channels);                                                    \
  }

#define KERNELS(T, name)                                                                                               \
  extern "C" __global__ void batch_norm_sums_##name(const T* x, float* partial, long long rows, int channels) {        \
    sums<T>(x, partial, rows, channels);                                                                               \
  }                                                                                                                    \
  extern "C" __global__ void batch_norm_statistics_##name(                                                             \
      const float* partial, int blocks, const T* x, const float* weight, const float* bias, float* running_mean,       \
      float* running_var, float* made, float* affine, long long rows, int channels, double momentum, double eps) {     \
    statistics<T>(partial, blocks, x, weight, bias, running_mean, running_var, made, affine, rows, channels, momentum, \
                  eps);                                                                                                \
  }                                                                                                                    \
  extern "C" __global__ void batch_norm_apply_##name(const T* x, const T* residual, const float* affine, T* y,         \
                                                     long long rows, int channels, int relu) {                         \
    apply<T>(x, residual, affine, y, rows, channels, relu);                                                            \
  }                                                                                                                    \
  GRADIENT_SUMS(T, false, false, false, name)                                                                          \
  GRADIENT_SUMS(T, true, false, false, relu_##name)                                                                    \
  GRADIENT_SUMS(T, true, true, false, relu_result_##name)                                                              \
  GRADIENT_SUMS(T, false, false, true, two_##name)                                                                     \
  GRADIENT_SUMS(T, true, false, true, relu_two_##name)                                                                 \
  GRADIENT_SUMS(T, true, true, true, relu_result_two_##name)                                                           \
  GRADIENT(T, false, name)                                                                                             \
  GRADIENT(T, true, relu_##name)
KERNELS(float, f32)
KERNELS(Half, f16)
KERNELS(Brain, bf16)
)";

/// Batch norm, the addition of a residual, and ReLU: y = relu(scale (x - mean) + bias + residual), with scale = weight
/// / sqrt(var + eps).
///
/// In single precision the mean is subtracted first, because scale x and scale mean may be large compared with their
/// difference. In 16 bits rounding x costs more accuracy than that. There y = relu(scale x + offset + residual), with
/// offset = bias - scale mean, which leaves room for more threads at a time.
///
/// Three kernels run forward and three backward:
/// - `sums_T`: partial sums over rows of x - x[0] and of its square (Chan, Golub, LeVeque 1983: shifted data).
/// - `statistics`: mean and 1 / sqrt(var + eps) of each channel, the running statistics, and scale, bias or offset,
///   mean.
/// - `apply_T`: y.
/// - `gradient_sums_T`: partial sums over rows of dz and dz (x - mean). dz = dy where y > 0; dy is the sum of the
///   gradients of up to two readers. Writes dz where the residual or a later kernel needs it.
/// - `coefficients`: gradients of weight and bias, and the coefficients that turn dz and x into dx.
/// - `gradient_T`: dx.
///
/// Kernels named `relu_T` recompute y, `relu_result_T` read it, and `two_T` add two gradients. Each thread has one pack
/// of channels and every n-th row. Sums over rows are in single precision within a thread and a block, and in double
/// precision over blocks. Their order is always the same.
inline constexpr KernelSource kBatchNormKernels{"batch_norm.cu", kBatchNormText};

}  // namespace autopar::kernels
