#pragma once

namespace autopar::kernels {

/// CUDA C of kernels that the library brings along, compiled after `kKernelPrelude` when they first run. Sources must
/// have static storage, because the cache's key is the text's address. Functions are `extern "C"`.
struct KernelSource {
  const char* name = "";  ///< for the compiler's messages: "batch_norm.cu"
  const char* text = "";
};

struct LaunchShape {
  unsigned blocks_x = 1, blocks_y = 1;
  unsigned threads_x = 1, threads_y = 1;
};

/// The prelude of every source, because NVRTC has no headers. It defines:
/// - `Half` and `Brain`, 16-bit types.
/// - `number(x)` in single precision (double for double), and `store(to, x)`, rounded to nearest even.
/// - `Pack` and `Words` of 16 bytes.
/// - `E4M3` and `E5M2`, formats of 8 bits, `two_in_8_bits`, and `tell_largest`, by which casts tell what they saw.
/// - `write_sums`, `sum_rows_of_block`, `write_sums_of_block`, `sum_column` and `sum_blocks`.
inline constexpr char kKernelPrelude[] = R"(
struct Half { unsigned short bits; };
struct Brain { unsigned short bits; };
__device__ inline float number(float x) { return x; }
__device__ inline double number(double x) { return x; }
__device__ inline float number(Brain x) { return __uint_as_float((unsigned)x.bits << 16); }
__device__ inline void store(float& to, float x) { to = x; }
__device__ inline void store(double& to, double x) { to = x; }
__device__ inline void store(Brain& to, float x) {
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(x));
#else
  const unsigned bits = __float_as_uint(x);
  to.bits = x != x ? 0x7fff : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
#endif
}
#ifdef __CUDACC__
__device__ inline float number(Half x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
__device__ inline void store(Half& to, float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(x)); }
#else  // tests run the text on a CPU
inline float number(Half x) { return cuda_on_cpu::float_of_half(x.bits); }
inline void store(Half& to, float x) { to.bits = cuda_on_cpu::half_of_float(x); }
#endif
template <class T> struct alignas(16) Pack { T at[16 / sizeof(T)]; };
#if __CUDA_ARCH__ >= 800
__device__ inline void store_two(unsigned& to, float first, float second, Brain) {
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(to) : "f"(second), "f"(first));
}
__device__ inline void store_two(unsigned& to, float first, float second, Half) {
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(to) : "f"(second), "f"(first));
}
#else
template <class T> __device__ inline void store_two(unsigned& to, float first, float second, T low) {
  T high;
  store(low, first);
  store(high, second);
  to = low.bits | (unsigned)high.bits << 16;
}
#endif
// A pack as it is loaded, whose numbers are taken out where they are used: those of a `Pack` take a register each, also
// of 16 bits. Numbers v and v + 1 are stored together, in one instruction: a number by itself, that is read again, is
// rounded at an eighth of the rate.
template <class T> struct alignas(16) Words {
  unsigned at[4];
  __device__ float operator[](int v) const {
    T one;
    one.bits = at[v / 2] >> v % 2 * 16;
    return number(one);
  }
  __device__ void put(int v, float first, float second) { store_two(at[v / 2], first, second, T()); }
};
template <> struct alignas(16) Words<float> {
  float at[4];
  __device__ float operator[](int v) const { return at[v]; }
  __device__ void put(int v, float first, float second) {
    at[v] = first;
    at[v + 1] = second;
  }
};

// A thread's V sums, in whole packs: as numbers of their own they take many times as long.
template <int V> __device__ inline void write_sums(const float (&sum)[V], float* to) {
  for (int v = 0; v < V; v += 4) *(Pack<float>*)(to + v) = Pack<float>{{sum[v], sum[v + 1], sum[v + 2], sum[v + 3]}};
}

// Sums of V numbers a thread over the rows of a block of 32 x R threads. Valid in the threads of row 0.
template <int R, int V> __device__ void sum_rows_of_block(float (&sum)[V]) {
  __shared__ float shared[R][V][32];
  for (int v = 0; v < V; ++v) shared[threadIdx.y][v][threadIdx.x] = sum[v];
  for (int half = R / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.y < half)
      for (int v = 0; v < V; ++v) shared[threadIdx.y][v][threadIdx.x] += shared[threadIdx.y + half][v][threadIdx.x];
  }
  for (int v = 0; threadIdx.y == 0 && v < V; ++v) sum[v] = shared[0][v][threadIdx.x];
}

// The sums of a block's rows, of a column of V numbers a thread, to its row of partial [gridDim.y, packs].
template <int R, int V> __device__ void write_sums_of_block(float (&sum)[V], float* partial, int pack, int packs) {
  sum_rows_of_block<R>(sum);
  if (threadIdx.y == 0 && pack < packs) write_sums(sum, partial + ((long long)blockIdx.y * packs + pack) * V);
}

// The sum over blocks of a column's partial sums, which lie `stride` apart; null: no column. Threads are 32 columns x
// 16 blocks. Valid in the threads of row 0.
__device__ inline float sum_column(const float* partial, int blocks, long long stride) {
  __shared__ float shared[16][32];
  float own = 0;
  if (partial) {
#pragma unroll 8
    for (int block = threadIdx.y; block < blocks; block += 16) own += partial[block * stride];
  }
  shared[threadIdx.y][threadIdx.x] = own;
  for (int half = 8; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.y < half) shared[threadIdx.y][threadIdx.x] += shared[threadIdx.y + half][threadIdx.x];
  }
  return shared[0][threadIdx.x];
}

// Sums over blocks: threads (32 channels, 8 rows of partial sums). Valid in the threads of row 0.
__device__ void sum_blocks(const float* partial, int blocks, int channels, double& first, double& second) {
  __shared__ double shared[2][8][32];
  const int channel = blockIdx.x * 32 + threadIdx.x;
  first = second = 0;
  if (channel < channels) {
    for (int row = threadIdx.y; row < blocks; row += 8) {
      first += partial[2ll * row * channels + channel];
      second += partial[(2ll * row + 1) * channels + channel];
    }
  }
  shared[0][threadIdx.y][threadIdx.x] = first;
  shared[1][threadIdx.y][threadIdx.x] = second;
  __syncthreads();
  if (threadIdx.y > 0) return;
  for (int row = 1; row < 8; ++row) {
    first += shared[0][row][threadIdx.x];
    second += shared[1][row][threadIdx.x];
  }
}

// The formats of 8 bits: mantissa bits, exponent bias and largest number.
struct E4M3 {
  unsigned char bits;
  static constexpr int kMantissa = 3, kBias = 7;
  static constexpr float kLargest = 448;
};
struct E5M2 {
  unsigned char bits;
  static constexpr int kMantissa = 2, kBias = 15;
  static constexpr float kLargest = 57344;
};

// Two numbers in 8 bits each, rounded to nearest even, the first in the low byte. Beyond the largest: the largest.
#if __CUDA_ARCH__ >= 890
__device__ inline unsigned two_in_8_bits(float first, float second, E4M3) {
  unsigned short two;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(second), "f"(first));
  return two;
}
__device__ inline unsigned two_in_8_bits(float first, float second, E5M2) {
  unsigned short two;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(two) : "f"(second), "f"(first));
  return two;
}
#else
template <class F> __device__ inline unsigned in_8_bits(float x, F) {
  const unsigned bits = __float_as_uint(x), sign = bits >> 24 & 0x80;
  float size = __uint_as_float(bits & 0x7fffffff);
  if (x != x) return 0x7f;
  if (size > F::kLargest) size = F::kLargest;
  int exponent = max((int)(__float_as_uint(size) >> 23) - 127, 1 - F::kBias);
  const float unit = __uint_as_float((unsigned)(exponent - F::kMantissa + 127) << 23);
  const float in_units = size / unit;
  int whole = (int)in_units;
  const float rest = in_units - whole;
  if (rest > 0.5f || (rest == 0.5f && whole % 2 == 1)) ++whole;
  return sign | (unsigned)(whole + (exponent + F::kBias - 1) * (1 << F::kMantissa));
}
template <class F> __device__ inline unsigned two_in_8_bits(float first, float second, F format) {
  return in_8_bits(first, format) | in_8_bits(second, format) << 8;
}
#endif

// Lets *most, a float, grow to the largest magnitude of a block's numbers, given as bf16 without signs. For all of its
// `Threads` threads. One atomic operation a block, if any: those of all warps would take a tenth of a cast's time.
template <int Threads> __device__ void tell_largest(unsigned largest, unsigned* most) {
  __shared__ unsigned of_warps[Threads / 32];
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
  for (int by = 16; by > 0; by /= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, by));
  if (thread % 32 == 0) of_warps[thread / 32] = largest;
  __syncthreads();
  if (thread > 0) return;
  for (int warp = 1; warp < Threads / 32; ++warp) largest = max(largest, of_warps[warp]);
  if (largest << 16 > *(volatile unsigned*)most) atomicMax(most, largest << 16);
}
)";

}  // namespace autopar::kernels
