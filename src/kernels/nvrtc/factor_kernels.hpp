#pragma once

#include <cstddef>

namespace autopar::kernels {

/// The arguments of a launch: gradients and their sizes in elements. Kernels get at most 4 KiB of arguments.
struct FactorTable {
  static constexpr std::size_t kMost = 240;
  void* data[kMost];
  long long size[kMost];
};
static_assert(FactorTable::kMost == 240 && sizeof(FactorTable) + sizeof(void*) <= 4096,
              "as below, and as launches take it");

/// CUDA C of `multiply_{f32,f64,f16,bf16}(FactorTable, factor)`, with a row of blocks for each gradient. The factor is
/// f64 for f64 and f32 for all other types.
inline constexpr const char* kFactorSource = R"(
struct Table { void* data[240]; long long size[240]; };
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

}  // namespace autopar::kernels
