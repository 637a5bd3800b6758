#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <source_location>

#include <math.h>  // CUDA C has exp, sqrt, … of float without std::

// What CUDA C means where a C++ compiler compiles a kernel's text: included before the text. Threads of a block take
// turns on one thread of the system (block.cpp), blocks run one after the other.

#define __global__
#define __device__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static thread_local  // the library's only ones: block.cpp finds, and spoils, all of them

struct uint3 {
  unsigned x, y, z;
};
extern uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace cuda_on_cpu {

using Site = std::source_location;

/// Waits for all threads of the block that have not ended.
void wait_for_block(const Site& site);
/// Waits for the lanes of `mask` that have not ended. @returns what lane `from` gave; -1: the thread's own
std::uint64_t exchange(unsigned mask, std::uint64_t given, int from, const Site& site);
/// Of the thread within its warp.
int lane();

template <class T>
T exchanged(unsigned mask, T given, int from, const Site& site) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &given, sizeof(T));
  bits = exchange(mask, bits, from, site);
  std::memcpy(&given, &bits, sizeof(T));
  return given;
}

float float_of_half(unsigned short bits);
/// Rounded to nearest even.
unsigned short half_of_float(float x);

}  // namespace cuda_on_cpu

// ---------------------------------------------------------------- synchronisation

inline void __syncthreads(const cuda_on_cpu::Site& site = cuda_on_cpu::Site::current()) {
  cuda_on_cpu::wait_for_block(site);
}
inline void __syncwarp(unsigned mask = ~0u, const cuda_on_cpu::Site& site = cuda_on_cpu::Site::current()) {
  cuda_on_cpu::exchange(mask, 0, -1, site);
}
inline void __threadfence() {}
template <class T>
T __shfl_sync(unsigned mask, T own, int from, const cuda_on_cpu::Site& site = cuda_on_cpu::Site::current()) {
  return cuda_on_cpu::exchanged(mask, own, from % 32, site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T own, int by, const cuda_on_cpu::Site& site = cuda_on_cpu::Site::current()) {
  return cuda_on_cpu::exchanged(mask, own, cuda_on_cpu::lane() ^ by, site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T own, int by, const cuda_on_cpu::Site& site = cuda_on_cpu::Site::current()) {
  const int from = cuda_on_cpu::lane() + by;
  return cuda_on_cpu::exchanged(mask, own, from < 32 ? from : -1, site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T own, int by, const cuda_on_cpu::Site& site = cuda_on_cpu::Site::current()) {
  const int from = cuda_on_cpu::lane() - by;
  return cuda_on_cpu::exchanged(mask, own, from >= 0 ? from : -1, site);
}

// ---------------------------------------------------------------- memory

template <class T>
T __ldcs(const T* from) {
  return *from;
}
template <class T>
T __ldcg(const T* from) {
  return *from;
}
template <class T>
T __ldg(const T* from) {
  return *from;
}
template <class T>
void __stcs(T* to, T value) {
  *to = value;
}
template <class T>
void __stcg(T* to, T value) {
  *to = value;
}
template <class T>
T atomicAdd(T* to, T by) {
  const T before = *to;
  *to += by;
  return before;
}

template <class T>
T atomicMax(T* to, T by) {
  const T before = *to;
  if (before < by) *to = by;
  return before;
}

// ---------------------------------------------------------------- numbers

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

template <class To, class From>
To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}
inline float __int_as_float(int bits) { return bits_as<float>(bits); }
inline float __uint_as_float(unsigned bits) { return bits_as<float>(bits); }
inline int __float_as_int(float x) { return bits_as<int>(x); }
inline unsigned __float_as_uint(float x) { return bits_as<unsigned>(x); }

inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline double __longlong_as_double(long long bits) { return bits_as<double>(bits); }

inline float rsqrt(float x) { return rsqrtf(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline int min(int a, int b) { return b < a ? b : a; }
inline int max(int a, int b) { return a < b ? b : a; }
inline unsigned min(unsigned a, unsigned b) { return b < a ? b : a; }
inline unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }
inline long long min(long long a, long long b) { return b < a ? b : a; }
inline long long max(long long a, long long b) { return a < b ? b : a; }
