#pragma once

#include "torch/device/kernel_source.hpp"

namespace autopar {

/// How the kernel of GELU's gradient is launched.
struct GeluGradientShape {
  static constexpr unsigned kPacks = 32;  ///< of a block: threads side by side
  static constexpr unsigned kRows = 8;    ///< of a block at a time: threads below one another
  static constexpr unsigned kFlight = 2;  ///< rows of both operands that a thread reads before it computes
};
static_assert(GeluGradientShape::kPacks == 32 && GeluGradientShape::kRows == 8 && GeluGradientShape::kFlight == 2,
              "as below");

/// CUDA C of the gradient dx of y = GELU(x) from that of y, both matrices of packs without gaps, and of sums over rows
/// of dx as it is stored.
///  `gelu_gradient_T`       of x normal(x), a block's rows [blockIdx.y * of_block, ...): dx, partial [blocks, columns]
///  `tanh_gelu_gradient_T`  of the formula with tanh
/// `add_up_columns_f32` of column_sums_source.hpp adds the sums up.
inline constexpr char kGeluGradientText[] = R"(
constexpr int kPacks = 32, kRows = 8, kFlight = 2;

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

template <class Formula, class T>
__device__ void gelu_gradient(const Pack<T>* dy, const Pack<T>* x, Pack<T>* dx, float* partial, long long rows, int packs,
                              int of_block) {
  constexpr int V = 16 / sizeof(T);
  const int pack = blockIdx.x * kPacks + threadIdx.x;
  const long long begin = (long long)blockIdx.y * of_block, end = begin + of_block < rows ? begin + of_block : rows;
  float sum[V] = {};
  if (pack < packs) {
    for (long long row = begin + threadIdx.y; row < end; row += kFlight * kRows) {
      Pack<T> gradient[kFlight], taken[kFlight];
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
#pragma unroll
        for (int v = 0; v < V; ++v) {
          store(gradient[i].at[v], number(gradient[i].at[v]) * Formula::derivative(number(taken[i].at[v])));
          sum[v] += number(gradient[i].at[v]);
        }
        dx[(row + i * kRows) * packs + pack] = gradient[i];
      }
    }
  }
  sum_rows_of_block<kRows>(sum);
  if (threadIdx.y > 0 || pack >= packs) return;
  float* const to = partial + ((long long)blockIdx.y * packs + pack) * V;
  for (int v = 0; v < V; ++v) to[v] = sum[v];
}

#define KERNEL(Formula, T, name)                                                                                       \
  extern "C" __global__ void __launch_bounds__(kPacks * kRows)                                                         \
      name(const Pack<T>* dy, const Pack<T>* x, Pack<T>* dx, float* partial, long long rows, int packs, int of_block) { \
    gelu_gradient<Formula>(dy, x, dx, partial, rows, packs, of_block);                                                 \
  }
KERNEL(Gelu, float, gelu_gradient_f32)
KERNEL(Gelu, Half, gelu_gradient_f16)
KERNEL(Gelu, Brain, gelu_gradient_bf16)
KERNEL(TanhGelu, float, tanh_gelu_gradient_f32)
KERNEL(TanhGelu, Half, tanh_gelu_gradient_f16)
KERNEL(TanhGelu, Brain, tanh_gelu_gradient_bf16)
)";

inline constexpr KernelSource kGeluGradientKernels{"gelu_gradient.cu", kGeluGradientText};

}  // namespace autopar
