#pragma once

#include "torch/device/kernel_source.hpp"

namespace autopar {

/// How the kernel of GELU's gradient is launched.
struct GeluGradientShape {
  static constexpr unsigned kPacks = 32;  ///< of a block: threads side by side
  static constexpr unsigned kRows = 16;   ///< of a block at a time: threads below one another
  static constexpr unsigned kFlight = 2;  ///< rows of both operands that a thread reads before it computes
};
static_assert(GeluGradientShape::kPacks == 32 && GeluGradientShape::kRows == 16 && GeluGradientShape::kFlight == 2,
              "as below");

/// CUDA C of the gradient dx of y = GELU(x) from that of y, both matrices of packs without gaps, and of sums over rows
/// of dx as it is stored.
///  `gelu_gradient_T`       of x normal(x), a block's rows [blockIdx.y * of_block, ...): dx, partial [blocks, columns]
///  `tanh_gelu_gradient_T`  of the formula with tanh
/// `add_up_columns_f32` of column_sums_source.hpp adds the sums up.
inline constexpr char kGeluGradientText[] = R"(
constexpr int kPacks = 32, kRows = 16, kFlight = 2;

struct Gelu {  // d (x N(x)) = N(x) + x n(x), with the normal distribution N and its density n
  static __device__ float derivative(float x) {
    const float below = 0.5f * (1 + erff(x * 0.70710678118654752f));
    return below + x * (expf(-0.5f * x * x) * 0.39894228040143268f);
  }
};
struct TanhGelu {  // x (1 + t) / 2, with t = tanh(sqrt(2 / pi) (x + 0.044715 x^3))
  static __device__ float derivative(float x) {
    constexpr float kSlope = 0.79788456080286536f, kCube = 0.044715f;
    const float t = tanhf(kSlope * (x + kCube * (x * x * x)));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * (kSlope * (1 + 3 * kCube * (x * x)));
  }
};

// For numbers of 16 bits, in half as many instructions: else arithmetic takes longer than memory. They err by 2e-6 at most,
// where rounding errs by 2e-4 and more.
#ifdef __CUDACC__
__device__ inline float power_of_2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
__device__ inline float inverse(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
#else
inline float power_of_2(float x) { return exp2f(x); }
inline float inverse(float x) { return 1 / x; }
#endif
struct ShortGelu {  // of a = |x|: N(-a) = exp(-a^2 / 2) m(a), where m, a polynomial of t, is fitted; the rest is symmetry
  static __device__ float derivative(float x) {
    const float a = fabsf(x), t = inverse(1 + 0.33f * a);
    const float m = t * (0.12166947f + t * (0.20484914f + t * (t * (0.37711128f - 0.11000254f * t) - 0.09362721f)));
    const float below = power_of_2(-0.72134752f * (x * x)) * (m - 0.39894228f * a);
    return x < 0 ? below : 1 - below;
  }
};
struct ShortTanhGelu {  // (1 + t) / 2 = s, with s = 1 / (1 + exp(-2 sqrt(2 / pi) (x + 0.044715 x^3)))
  static __device__ float derivative(float x) {
    constexpr float kSlope = 0.79788456080286536f, kCube = 0.044715f, kLog2E = 1.44269504f;
    const float square = x * x;
    const float s = inverse(1 + power_of_2(-2 * kLog2E * kSlope * (x + kCube * (square * x))));
    return s + 2 * x * (s * (1 - s)) * (kSlope + 3 * kCube * kSlope * square);
  }
};

template <class Formula, class T>
__device__ void gelu_gradient(const Words<T>* dy, const Words<T>* x, Pack<T>* dx, float* partial, long long rows, int packs,
                              int of_block) {
  constexpr int V = 16 / sizeof(T);
  const int pack = blockIdx.x * kPacks + threadIdx.x;
  const long long begin = (long long)blockIdx.y * of_block, end = begin + of_block < rows ? begin + of_block : rows;
  float sum[V] = {};
  if (pack < packs) {
    for (long long row = begin + threadIdx.y; row < end; row += kFlight * kRows) {
      Words<T> gradient[kFlight], taken[kFlight];
#pragma unroll
      for (int i = 0; i < kFlight; ++i) {
        const long long at = (row + i * kRows) * packs + pack;
        if (row + i * kRows >= end) continue;
        gradient[i] = dy[at];
        taken[i] = x[at];
      }
#pragma unroll
      for (int i = 0; i < kFlight; ++i) {
        if (row + i * kRows >= end) continue;
        Pack<T> made;
#pragma unroll
        for (int v = 0; v < V; ++v) {
          store(made.at[v], gradient[i][v] * Formula::derivative(taken[i][v]));
          sum[v] += number(made.at[v]);
        }
        dx[(row + i * kRows) * packs + pack] = made;
      }
    }
  }
  write_sums_of_block<kRows>(sum, partial, pack, packs);
}

#define KERNEL(Formula, T, name)                                                                                       \
  extern "C" __global__ void __launch_bounds__(kPacks * kRows, 2)                                                         \
      name(const Words<T>* dy, const Words<T>* x, Pack<T>* dx, float* partial, long long rows, int packs, int of_block) { \
    gelu_gradient<Formula>(dy, x, dx, partial, rows, packs, of_block);                                                 \
  }
KERNEL(Gelu, float, gelu_gradient_f32)
KERNEL(ShortGelu, Half, gelu_gradient_f16)
KERNEL(ShortGelu, Brain, gelu_gradient_bf16)
KERNEL(TanhGelu, float, tanh_gelu_gradient_f32)
KERNEL(ShortTanhGelu, Half, tanh_gelu_gradient_f16)
KERNEL(ShortTanhGelu, Brain, tanh_gelu_gradient_bf16)
)";

inline constexpr KernelSource kGeluGradientKernels{"gelu_gradient.cu", kGeluGradientText};

}  // namespace autopar
