#pragma once

#include "kernels/kernel_source.hpp"
#include "kernels/tensor_table.hpp"

namespace autopar::kernels {

/// Orders of norms, as these kernels take them.
enum NormOrder : int { kLargestOrder = 0, kSumOrder = 1, kSquaresOrder = 2 };

static_assert(TensorTable::kMost == 200 && TensorTable::kElementsOfBlock == 65536 && TensorTable::kThreads == 512 &&
                  sizeof(TensorTable) + 2 * sizeof(void*) <= 4096 && kSumOrder == 1 && kSquaresOrder == 2,
              "as in the text, and as launches take it");

inline constexpr char kGradientNormText[] = R"(
struct Table { void* data[200]; long long size[200]; int first_block[200]; int count, blocks; };
constexpr int kThreads = 512, kOfBlock = 65536;

// A block's stretch of a tensor. A thread has every kThreads-th V elements of it, also where they are read one by one:
// the order in which they are added follows from sizes alone.
template <class T> struct Stretch {
  static constexpr int V = 16 / sizeof(T), kStep = kThreads * V;
  T* __restrict__ data;
  int size;

  __device__ explicit Stretch(const Table& table) {
    const int block = blockIdx.x;
    int t = 0;
    for (int beyond = table.count; t + 1 < beyond;) {
      const int middle = (t + beyond) / 2;
      if (table.first_block[middle] <= block) t = middle; else beyond = middle;
    }
    const long long begin = (long long)(block - table.first_block[t]) * kOfBlock, left = table.size[t] - begin;
    size = left < kOfBlock ? left : kOfBlock;
    data = (T*)table.data[t] + begin;
  }
  // Whether it is as long as a block's may be, and lies in packs.
  __device__ bool is_whole() const { return size == kOfBlock && ((unsigned long long)data & 15) == 0; }
};

// How numbers make a norm, and norms the norm of all. What is no number stays so.
struct Sum {
  static __device__ double add(double to, double x) { return to + fabs(x); }
  static __device__ double merge(double a, double b) { return a + b; }
  static __device__ double root(double x) { return x; }
};
struct Squares {
  static __device__ double add(double to, double x) { return fma(x, x, to); }
  static __device__ double merge(double a, double b) { return a + b; }
  static __device__ double root(double x) { return sqrt(x); }
};
struct Largest {
  static __device__ double add(double to, double x) { return merge(to, fabs(x)); }
  static __device__ double merge(double a, double b) { return a < b || b != b ? b : a; }
  static __device__ double root(double x) { return x; }
};

// Of what each thread has added up. Valid in thread 0.
template <class Rule> __device__ double norm_of_block(double own) {
  __shared__ double shared[kThreads];
  const int thread = threadIdx.x;
  shared[thread] = own;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) shared[thread] = Rule::merge(shared[thread], shared[thread + half]);
  }
  return Rule::root(shared[0]);
}

template <class Rule, class T> __device__ double norm_of_stretch(const Stretch<T>& of) {
  constexpr int V = Stretch<T>::V, kStep = Stretch<T>::kStep;
  double own = 0;
  if (of.is_whole()) {
#pragma unroll 4
    for (int at = threadIdx.x * V; at < kOfBlock; at += kStep) {
      const Pack<T> taken = *(const Pack<T>*)(of.data + at);
#pragma unroll
      for (int v = 0; v < V; ++v) own = Rule::add(own, number(taken.at[v]));
    }
  } else {
    for (int at = threadIdx.x * V; at < of.size; at += kStep)
      for (int i = at; i < at + V && i < of.size; ++i) own = Rule::add(own, number(of.data[i]));
  }
  return norm_of_block<Rule>(own);
}

template <class T> __device__ void norms(const Table& table, double* to, int order) {
  const Stretch<T> of(table);
  const double norm = order == 1   ? norm_of_stretch<Sum>(of)
                      : order == 2 ? norm_of_stretch<Squares>(of)
                                   : norm_of_stretch<Largest>(of);
  if (threadIdx.x == 0) to[blockIdx.x] = norm;
}

template <class Rule> __device__ double norm_by(const double* norms, int count) {
  double own = 0;
#pragma unroll 8
  for (int i = threadIdx.x; i < count; i += kThreads) own = Rule::add(own, norms[i]);
  return norm_of_block<Rule>(own);
}

// Valid in thread 0.
__device__ double norm_of_norms(const double* norms, int count, int order) {
  return order == 1 ? norm_by<Sum>(norms, count) : order == 2 ? norm_by<Squares>(norms, count) : norm_by<Largest>(norms, count);
}

extern "C" __global__ void __launch_bounds__(kThreads) norm_by_rank(const double* norms, int count, int order,
                                                                    double* by_rank, int ranks, int rank) {
  const double norm = norm_of_norms(norms, count, order);
  for (int r = threadIdx.x; r < ranks; r += kThreads)
    if (r != rank) by_rank[r] = 0;
  if (threadIdx.x == 0) by_rank[rank] = norm;
}

template <class T> __device__ void clip(const double* by_rank, int ranks, int order, double most,
                                        double* norm_and_factor, T* given) {
  const double norm = norm_of_norms(by_rank, ranks, order);
  if (threadIdx.x > 0) return;
  const double factor = 1 / (norm + 1e-6) * most;
  norm_and_factor[0] = norm;
  norm_and_factor[1] = factor > 1 ? 1 : factor;
  store(*given, norm);
}

template <class T, class F> __device__ void multiply(const Table& table, const void* factor, int is_double) {
  const F by = is_double ? (F)*(const double*)factor : (F)*(const float*)factor;
  if (by == 1) return;
  const Stretch<T> of(table);
  constexpr int V = Stretch<T>::V, kStep = Stretch<T>::kStep;
  if (of.is_whole()) {
#pragma unroll 4
    for (int at = threadIdx.x * V; at < kOfBlock; at += kStep) {
      Pack<T> taken = *(const Pack<T>*)(of.data + at);
#pragma unroll
      for (int v = 0; v < V; ++v) store(taken.at[v], number(taken.at[v]) * by);
      *(Pack<T>*)(of.data + at) = taken;
    }
  } else {
    for (int i = threadIdx.x; i < of.size; i += kThreads) store(of.data[i], number(of.data[i]) * by);
  }
}

#define KERNELS(T, F, name)                                                                                            \
  extern "C" __global__ void __launch_bounds__(kThreads, 2)                                                            \
  norms_##name(const __grid_constant__ Table table, double* to, int order) { norms<T>(table, to, order); }             \
  extern "C" __global__ void __launch_bounds__(kThreads)                                                               \
  clip_##name(const double* by_rank, int ranks, int order, double most, double* norm_and_factor, T* given) {           \
    clip(by_rank, ranks, order, most, norm_and_factor, given);                                                         \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(kThreads, 2)                                                            \
  multiply_##name(const __grid_constant__ Table table, const void* factor, int is_double) {                            \
    multiply<T, F>(table, factor, is_double);                                                                          \
  }
KERNELS(float, float, f32)
KERNELS(double, double, f64)
KERNELS(Half, float, f16)
KERNELS(Brain, float, bf16)
)";

/// CUDA C of norms of tensors, in double precision, and of multiplying tensors. `T` is f32, f64, f16 or bf16, the order
/// a `NormOrder`. All but the first and the last run in one block of TensorTable::kThreads threads.
/// - `norms_T(TensorTable, to, order)`: the norm of each block's stretch.
/// - `norm_by_rank(norms, count, order, by_rank, ranks, rank)`: the norm of norms, at the place of a rank among zeros.
/// - `clip_T(by_rank, ranks, order, most, norm_and_factor, given)`: the norm over all ranks, the factor that scales it
///   down to `most`, and the norm in type T.
/// - `multiply_T(TensorTable, factor, is_double)`: times a number on the device, f64 or f32; writes nothing if it is
///   one.
inline constexpr KernelSource kGradientNormKernels{"gradient_norm.cu", kGradientNormText};

}  // namespace autopar::kernels
