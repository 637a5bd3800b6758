#pragma once

#include "torch/device/kernel_source.hpp"

namespace autopar {

/// How the kernel of GELU is launched: a row of blocks.
struct GeluShape {
  static constexpr unsigned kThreads = 128;  ///< of a block
  static constexpr int kFlight = 8;          ///< packs that a thread reads before it computes
};
static_assert(GeluShape::kThreads == 128 && GeluShape::kFlight == 8, "as below");

/// CUDA C of y = GELU(x), both packs without gaps, by libtorch's formulas: the same bits.
///  `gelu_T`       of x N(x), a block's packs [blockIdx.x * of_block, ...), of_block at most kFlight for each thread
///  `tanh_gelu_T`  of the formula with tanh
inline constexpr char kGeluText[] = R"(
constexpr int kThreads = 128, kFlight = 8;

struct Gelu {
  static __device__ float of(float x) { return x * 0.5f * (1 + erff(x * 0.70710678118654752440f)); }
};
struct TanhGelu {
  static __device__ float of(float x) {
    constexpr float kSlope = 0.79788456080286535588f, kCube = 0.044715f;
    const float cube = x * x * x;
    return 0.5f * x * (1 + tanhf(kSlope * (x + kCube * cube)));
  }
};

template <class Formula, class T> __device__ void gelu(const Words<T>* x, Pack<T>* y, long long packs, int of_block) {
  const long long begin = (long long)blockIdx.x * of_block, rest = packs - begin;
  const int own = rest < of_block ? rest : of_block;
  Words<T> taken[kFlight];
#pragma unroll
  for (int i = 0; i < kFlight; ++i) {
    const int at = i * kThreads + threadIdx.x;
    if (at < own) taken[i] = x[begin + at];
  }
#pragma unroll
  for (int i = 0; i < kFlight; ++i) {
    const int at = i * kThreads + threadIdx.x;
    if (at >= own) return;
    Pack<T> made;
#pragma unroll
    for (int v = 0; v < 16 / sizeof(T); ++v) store(made.at[v], Formula::of(taken[i][v]));
    y[begin + at] = made;
  }
}

#define KERNEL(Formula, T, name)                                                    \
  extern "C" __global__ void __launch_bounds__(kThreads)                              \
      name(const Words<T>* x, Pack<T>* y, long long packs, int of_block) {             \
    gelu<Formula>(x, y, packs, of_block);                                              \
  }
KERNEL(Gelu, float, gelu_f32)
KERNEL(Gelu, Half, gelu_f16)
KERNEL(Gelu, Brain, gelu_bf16)
KERNEL(TanhGelu, float, tanh_gelu_f32)
KERNEL(TanhGelu, Half, tanh_gelu_f16)
KERNEL(TanhGelu, Brain, tanh_gelu_bf16)
)";

inline constexpr KernelSource kGeluKernels{"gelu.cu", kGeluText};

}  // namespace autopar
