#pragma once

#include "kernels/kernel_source.hpp"

namespace autopar::kernels {

/// Launch shape of the GELU kernel: a row of blocks, which take turns.
struct GeluShape {
  static constexpr unsigned kThreads = 512;  ///< of a block
  static constexpr int kFlight = 4;          ///< packs that a thread reads before it computes
};
static_assert(GeluShape::kThreads == 512 && GeluShape::kFlight == 4, "as in the text");

inline constexpr char kGeluText[] = R"(
constexpr int kThreads = 512, kFlight = 4;

// Functions f of y = x (1 + f(x)) / 2 with f(-x) = -f(x).
struct Erf {
  static __device__ float of(float x) { return erff(x * 0.70710678118654752440f); }
};
struct Tanh {
  static __device__ float of(float x) {
    constexpr float kSlope = 0.79788456080286535588f, kCube = 0.044715f;
    return tanhf(kSlope * (x + kCube * (x * x * x)));
  }
};

template <class F, class T> struct Odd {
  __device__ void prepare() {}
  __device__ float of(float x) const { return F::of(x); }
};
// Brain has few numbers: those of 2^-9 to 6 are in a table, as arithmetic takes longer than memory. Below, f changes no
// bit of y; above, it is 1.
template <class F> struct Odd<F, Brain> {
  static constexpr unsigned kFirst = 118 << 7, kLast = 129 << 7 | 64;
  float at[kLast - kFirst + 1];
  __device__ void prepare() {
    for (unsigned i = threadIdx.x; i <= kLast - kFirst; i += kThreads)
      at[i] = i == 0 ? 0.f : F::of(__uint_as_float((kFirst + i) << 16));
    __syncthreads();
  }
  __device__ float of(float x) const {
    const float within = fminf(fmaxf(fabsf(x), __uint_as_float(kFirst << 16)), __uint_as_float(kLast << 16));
    return copysignf(at[(__float_as_uint(within) >> 16) - kFirst], x);
  }
};

template <class F, class T> __device__ void gelu(const Words<T>* x, Words<T>* y, long long packs, int of_block) {
  __shared__ Odd<F, T> odd;
  odd.prepare();
  const auto made = [&](float of) { return of * 0.5f * (1 + odd.of(of)); };
  for (long long begin = (long long)blockIdx.x * of_block; begin < packs; begin += (long long)gridDim.x * of_block) {
    const int own = packs - begin < of_block ? packs - begin : of_block;
    Words<T> taken[kFlight];
#pragma unroll
    for (int i = 0; i < kFlight; ++i) {
      const int at = i * kThreads + threadIdx.x;
      if (at < own) taken[i] = x[begin + at];
    }
#pragma unroll
    for (int i = 0; i < kFlight; ++i) {
      const int at = i * kThreads + threadIdx.x;
      if (at >= own) break;
      Words<T> pack;
#pragma unroll
      for (int v = 0; v < 16 / sizeof(T); v += 2) pack.put(v, made(taken[i][v]), made(taken[i][v + 1]));
      y[begin + at] = pack;
    }
  }
}

#define KERNEL(F, T, name)                                                          \
  extern "C" __global__ void __launch_bounds__(kThreads, 3)                           \
      name(const Words<T>* x, Words<T>* y, long long packs, int of_block) {             \
    gelu<F>(x, y, packs, of_block);                                                    \
  }
KERNEL(Erf, float, gelu_f32)
KERNEL(Erf, Half, gelu_f16)
KERNEL(Erf, Brain, gelu_bf16)
KERNEL(Tanh, float, tanh_gelu_f32)
KERNEL(Tanh, Half, tanh_gelu_f16)
KERNEL(Tanh, Brain, tanh_gelu_bf16)
)";

/// CUDA C of y = GELU(x), both packs without gaps, by libtorch's formulas and with the same bits.
/// - `gelu_T`: x N(x), with the normal distribution N. A block takes `of_block` packs at a time, at most kFlight per
///   thread.
/// - `tanh_gelu_T`: the tanh formula.
inline constexpr KernelSource kGeluKernels{"gelu.cu", kGeluText};

}  // namespace autopar::kernels
