#pragma once

namespace autopar {

/// CUDA C of kernels that the library brings along, compiled behind `kNumbersSource` where they first run. Of static
/// storage: the text's address is what they are remembered by. Functions are `extern "C"`.
struct KernelSource {
  const char* name = "";  ///< for the compiler's messages: "batch_norm.cu"
  const char* text = "";
};

struct LaunchShape {
  unsigned blocks_x = 1, blocks_y = 1;
  unsigned threads_x = 1, threads_y = 1;
};

/// What sources begin with, as NVRTC has no headers of its own: `Half` and `Brain` of 16 bits, `number(x)` in
/// single precision (double for double), `store(to, x)` rounded to nearest even, and `Pack` of 16 bytes.
inline constexpr char kNumbersSource[] = R"(
struct Half { unsigned short bits; };
struct Brain { unsigned short bits; };
__device__ inline float number(float x) { return x; }
__device__ inline double number(double x) { return x; }
__device__ inline float number(Half x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
__device__ inline float number(Brain x) { return __uint_as_float((unsigned)x.bits << 16); }
__device__ inline void store(float& to, float x) { to = x; }
__device__ inline void store(double& to, double x) { to = x; }
__device__ inline void store(Half& to, float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(x)); }
__device__ inline void store(Brain& to, float x) {
  const unsigned bits = __float_as_uint(x);
  to.bits = x != x ? 0x7fff : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
template <class T> struct alignas(16) Pack { T at[16 / sizeof(T)]; };
)";

}  // namespace autopar
