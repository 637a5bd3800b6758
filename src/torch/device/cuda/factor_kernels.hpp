#pragma once

#include <cstddef>

namespace autopar {

/// The arguments of a launch: gradients and their elements. Kernels get 4 KiB of arguments at most.
struct FactorTable {
  static constexpr std::size_t kMost = 240;
  void* data[kMost];
  long long size[kMost];
};
static_assert(FactorTable::kMost == 240 && sizeof(FactorTable) + sizeof(void*) <= 4096,
              "as below, and as launches take it");

/// CUDA C of `multiply_{f32,f64,f16,bf16}(FactorTable, factor)`: a row of blocks for each gradient. Factors are f64 for
/// f64, f32 for all others. 16-bit numbers are taken apart by hand, as NVRTC has no headers of its own.
inline constexpr const char* kFactorSource = R"(
struct Table { void* data[240]; long long size[240]; };
struct Half { unsigned short bits; };
struct Brain { unsigned short bits; };
__device__ float number(float x) { return x; }
__device__ double number(double x) { return x; }
__device__ float number(Half x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
__device__ float number(Brain x) { return __uint_as_float((unsigned)x.bits << 16); }
__device__ void store(float& to, float x) { to = x; }
__device__ void store(double& to, double x) { to = x; }
__device__ void store(Half& to, float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(x)); }
__device__ void store(Brain& to, float x) {
  const unsigned bits = __float_as_uint(x);
  to.bits = x != x ? 0x7fff : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
template <class T, class F> __device__ void multiply(const Table& table, const F* factor) {
  const F by = *factor;
  if (by == 1) return;
  T* const data = (T*)table.data[blockIdx.y];
  const long long step = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < table.size[blockIdx.y]; i += step) {
    store(data[i], number(data[i]) * by);
  }
}
extern "C" __global__ void multiply_f32(const Table table, const float* factor) { multiply<float>(table, factor); }
extern "C" __global__ void multiply_f64(const Table table, const double* factor) { multiply<double>(table, factor); }
extern "C" __global__ void multiply_f16(const Table table, const float* factor) { multiply<Half>(table, factor); }
extern "C" __global__ void multiply_bf16(const Table table, const float* factor) { multiply<Brain>(table, factor); }
)";

}  // namespace autopar
