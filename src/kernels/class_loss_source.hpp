#pragma once

#include "kernels/kernel_source.hpp"

namespace autopar::kernels {

/// Threads of a block. Each block has one row of logits.
inline constexpr unsigned kClassLossThreads = 512;

inline constexpr char kClassLossText[] = R"(
constexpr int kWarps = 16;  // of 512 threads

__device__ inline float infinity() { return __int_as_float(0x7f800000); }

#ifdef __CUDACC__
__device__ inline float power_of_2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
#else
inline float power_of_2(float x) { return exp2f(x); }
#endif
// Of what comes from numbers of type T: for 16 bits in a third of the instructions. That errs by 3e-7.
template <class T> __device__ inline float exponential(float x) { return power_of_2(x * 1.44269504f); }
template <> __device__ inline float exponential<float>(float x) { return expf(x); }

// Of exponentials relative to the largest so far.
template <class T> struct Sum {
  float most, sum;
  // One factor for what came before all of them.
  template <int V> __device__ void add(const float (&x)[V]) {
    float larger = most;
    for (int v = 0; v < V; ++v) larger = fmaxf(larger, x[v]);
    if (larger == -infinity()) {  // nothing yet, or what is no number
      for (int v = 0; v < V; ++v) sum += x[v] != x[v] ? x[v] : 0.f;
      return;
    }
    sum *= expf(most - larger);
    for (int v = 0; v < V; ++v) sum += exponential<T>(x[v] - larger);
    most = larger;
  }
  __device__ void add(Sum other) {
    const float larger = fmaxf(most, other.most);
    if (larger > -infinity()) {
      sum = sum * expf(most - larger) + other.sum * expf(other.most - larger);
      most = larger;
    } else {
      sum += other.sum;
    }
  }
};

// Of a row; the first thread of the block has it.
template <class T> __device__ Sum<T> sum_of_row(const T* x, int classes, long long width) {
  constexpr int V = 16 / sizeof(T);
  Sum<T> own = {-infinity(), 0};
  const int packs = width % V == 0 ? classes / V : 0;
#pragma unroll 2
  for (int pack = threadIdx.x; pack < packs; pack += blockDim.x) {
    const Pack<T> taken = ((const Pack<T>*)x)[pack];
    float logits_of_pack[V];
    for (int v = 0; v < V; ++v) logits_of_pack[v] = number(taken.at[v]);
    own.add(logits_of_pack);
  }
  for (int at = packs * V + threadIdx.x; at < classes; at += blockDim.x) {
    const float logit[1] = {number(x[at])};
    own.add(logit);
  }
  __shared__ Sum<T> shared[kWarps];
  for (int part = 16; part > 0; part /= 2) {
    const Sum<T> other = {__shfl_down_sync(~0u, own.most, part), __shfl_down_sync(~0u, own.sum, part)};
    own.add(other);
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = own;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < kWarps; ++warp) own.add(shared[warp]);
  }
  return own;
}

template <class T> __device__ void losses(const T* logits, const long long* targets, const float* weight,
                                          long long ignored, float* log_sums, float* losses, int classes,
                                          long long width) {
  const long long row = blockIdx.x;
  const T* const x = logits + row * width;
  const Sum<T> own = sum_of_row(x, classes, width);
  if (threadIdx.x > 0) return;
  const float log_sum = own.most + logf(own.sum);
  log_sums[row] = log_sum;
  const long long target = targets[row];
  if (target == ignored) {
    losses[row] = 0;
  } else if (target < 0 || target >= classes) {
    losses[row] = __int_as_float(0x7fc00000);
  } else {
    losses[row] = (weight ? weight[target] : 1.f) * (log_sum - number(x[target]));
  }
}

// Of a part of the classes. @param statistics  [3, rows]
template <class T> __device__ void statistics(const T* logits, const long long* targets, long long first,
                                              float* statistics, int classes, long long width) {
  const long long row = blockIdx.x, rows = gridDim.x, target = targets[row] - first;
  const T* const x = logits + row * width;
  const Sum<T> own = sum_of_row(x, classes, width);
  if (threadIdx.x > 0) return;
  const float log_sum = own.most + logf(own.sum);
  statistics[row] = log_sum;
  statistics[rows + row] = log_sum == -infinity() ? 0.f : 1.f;
  statistics[2 * rows + row] = target >= 0 && target < classes ? number(x[target]) : 0.f;
}

// Of `classes` from `first` on, out of `all`. `given` is one number a row, or one for all (`step` 1 or 0).
template <class T> __device__ void gradients(const T* logits, const long long* targets, const float* weight,
                                             long long ignored, const float* log_sums, const float* given, int step,
                                             T* made, int classes, long long width, long long made_width, int padding,
                                             long long first, long long all) {
  constexpr int V = 16 / sizeof(T);
  const long long row = blockIdx.x, target = targets[row], own = target - first;
  const T* const x = logits + row * width;
  T* const out = made + row * made_width;
  const bool counts = target != ignored && target >= 0 && target < all;
  const float factor = counts ? given[row * step] * (weight ? weight[target] : 1.f) : 0.f, log_sum = log_sums[row];
  const auto gradient = [&](float logit, int at) {
    if (!counts) return 0.f;
    return factor * (exponential<T>(logit - log_sum) - (at == own ? 1.f : 0.f));
  };
  const int packs = width % V == 0 && made_width % V == 0 ? classes / V : 0;
  for (int pack = threadIdx.x; pack < packs; pack += blockDim.x) {
    Pack<T> taken = ((const Pack<T>*)x)[pack];
    for (int v = 0; v < V; ++v) store(taken.at[v], gradient(number(taken.at[v]), pack * V + v));
    ((Pack<T>*)out)[pack] = taken;
  }
  for (int at = packs * V + threadIdx.x; at < classes; at += blockDim.x) store(out[at], gradient(number(x[at]), at));
  if (threadIdx.x < padding) store(out[classes + threadIdx.x], 0.f);
}

#define KERNELS(T, name)                                                                                         \
  extern "C" __global__ void cross_entropy_losses_##name(const T* logits, const long long* targets,              \
                                                         const float* weight, long long ignored, float* log_sums, \
                                                         float* made, int classes, long long width) {            \
    losses<T>(logits, targets, weight, ignored, log_sums, made, classes, width);                                 \
  }                                                                                                              \
  extern "C" __global__ void cross_entropy_statistics_##name(const T* logits, const long long* targets,          \
                                                             long long first, float* made, int classes,          \
                                                             long long width) {                                  \
    statistics<T>(logits, targets, first, made, classes, width);                                                 \
  }                                                                                                              \
  extern "C" __global__ void cross_entropy_gradients_##name(                                                     \
      const T* logits, const long long* targets, const float* weight, long long ignored, const float* log_sums,  \
      const float* given, int step, T* made, int classes, long long width, long long made_width, int padding,    \
      long long first, long long all) {                                                                          \
    gradients<T>(logits, targets, weight, ignored, log_sums, given, step, made, classes, width, made_width,      \
                 padding, first, all);                                                                           \
  }
KERNELS(float, f32)
KERNELS(Half, f16)
KERNELS(Brain, bf16)
)";

/// Cross entropy of rows of logits [rows, classes] in 16 bits or single precision, with statistics in single precision.
/// Rows of the logits begin `width` elements apart, and rows of the gradient `made_width`.
/// - `cross_entropy_losses_T`: reads the logits once and writes log-sum-exps and losses (Milakov, Gimelshein 2018:
///   online softmax).
/// - `cross_entropy_statistics_T`: the same for a rank that has `classes` from `first` on. For each row it writes the
///   log-sum-exp of these, whether that is more than -inf (1 or 0), and the target's logit (0 if another rank has it).
/// - `cross_entropy_gradients_T`: reads the logits again and writes the gradient, which may overwrite them. It has
///   `classes` from `first` on, out of `all`. It writes zeros into `padding` columns behind each row.
///
/// A row whose target is not a class has the loss NaN. A row whose target is `ignored` has loss zero and no gradient.
inline constexpr KernelSource kClassLossKernels{"class_loss.cu", kClassLossText};

}  // namespace autopar::kernels
