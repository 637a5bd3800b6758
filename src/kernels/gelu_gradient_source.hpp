#pragma once

#include "kernels/kernel_source.hpp"

namespace autopar::kernels {

/// Launch shape of the GELU backward kernel.
struct GeluGradientShape {
  static constexpr unsigned kPacks = 32;  ///< packs of a block: threads in x
  static constexpr unsigned kRows = 16;   ///< rows that a block reads at a time: threads in y
  static constexpr unsigned kFlight = 2;  ///< rows of both operands that a thread reads before it computes
};
static_assert(GeluGradientShape::kPacks == 32 && GeluGradientShape::kRows == 16 && GeluGradientShape::kFlight == 2,
              "as in the text");

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

// For numbers of 16 bits the derivative at -a is in a table, for a of 2^-15 to 8 with 8 significant bits, as arithmetic
// takes longer than memory; of Half, which has more bits, it is in a straight line between two. At a it is 1 less that.
template <class Formula, class T> struct Derivative {
  static constexpr unsigned kFirst = 112 << 7, kLast = 130 << 7;
  float at[kLast - kFirst + 2];
  __device__ void prepare() {
    for (unsigned i = threadIdx.y * kPacks + threadIdx.x; i < kLast - kFirst + 2; i += kPacks * kRows)
      at[i] = Formula::derivative(-__uint_as_float((kFirst + i) << 16));
    __syncthreads();
  }
  __device__ float of(float x) const {
    const float within = fminf(fmaxf(fabsf(x), __uint_as_float(kFirst << 16)), __uint_as_float(kLast << 16));
    const unsigned bits = __float_as_uint(within), entry = (bits >> 16) - kFirst;
    const float below = between(at + entry, bits, T());
    return x * 0.f + (x < 0 ? below : 1 - below);  // none of what is no number, and as libtorch has it none of infinity
  }

 private:
  static __device__ float between(const float* two, unsigned, Brain) { return two[0]; }
  static __device__ float between(const float* two, unsigned bits, Half) {
    const float part = __uint_as_float(0x3f800000 | (bits & 0xffff) << 7) - 1;
    return two[0] + (two[1] - two[0]) * part;
  }
};
template <class Formula> struct Derivative<Formula, float> {
  __device__ void prepare() {}
  __device__ float of(float x) const { return Formula::derivative(x); }
};

template <class Formula, class T>
__device__ void gelu_gradient(const Words<T>* dy, const Words<T>* x, Words<T>* dx, float* partial, long long rows, int packs,
                              int of_block) {
  constexpr int V = 16 / sizeof(T);
  const int pack = blockIdx.x * kPacks + threadIdx.x;
  const long long begin = (long long)blockIdx.y * of_block, end = begin + of_block < rows ? begin + of_block : rows;
  __shared__ Derivative<Formula, T> derivative;
  derivative.prepare();
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
        Words<T> made;
#pragma unroll
        for (int v = 0; v < V; v += 2) {
          made.put(v, gradient[i][v] * derivative.of(taken[i][v]), gradient[i][v + 1] * derivative.of(taken[i][v + 1]));
          sum[v] += made[v];
          sum[v + 1] += made[v + 1];
        }
        dx[(row + i * kRows) * packs + pack] = made;
      }
    }
  }
  write_sums_of_block<kRows>(sum, partial, pack, packs);
}

#define KERNEL(Formula, T, name)                                                                                       \
  extern "C" __global__ void __launch_bounds__(kPacks * kRows, 2)                                                         \
      name(const Words<T>* dy, const Words<T>* x, Words<T>* dx, float* partial, long long rows, int packs, int of_block) { \
    gelu_gradient<Formula>(dy, x, dx, partial, rows, packs, of_block);                                                 \
  }
KERNEL(Gelu, float, gelu_gradient_f32)
KERNEL(Gelu, Half, gelu_gradient_f16)
KERNEL(Gelu, Brain, gelu_gradient_bf16)
KERNEL(TanhGelu, float, tanh_gelu_gradient_f32)
KERNEL(TanhGelu, Half, tanh_gelu_gradient_f16)
KERNEL(TanhGelu, Brain, tanh_gelu_gradient_bf16)
)";

/// CUDA C of GELU's backward: dx from x and dy, where y = GELU(x), all matrices of packs without gaps. It also sums the
/// stored dx over rows.
/// - `gelu_gradient_T`: for x N(x), with the normal distribution N. Covers a block's rows [blockIdx.y * of_block, ...);
///   writes dx and partial [blocks, columns].
/// - `tanh_gelu_gradient_T`: for the tanh formula.
///
/// `add_up_columns_f32` of column_sums_source.hpp adds up the partial sums.
inline constexpr KernelSource kGeluGradientKernels{"gelu_gradient.cu", kGeluGradientText};

}  // namespace autopar::kernels
