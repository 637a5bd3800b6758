#pragma once

#include <cstddef>

#include "torch/device/kernel_source.hpp"

namespace autopar {

/// The arguments of a launch: tensors, and the first of the blocks that each has.
struct AdamTable {
  static constexpr std::size_t kMost = 72;
  static constexpr long long kElementsOfBlock = 16384;
  static constexpr unsigned kThreads = 256;
  void* parameter[kMost];
  const void* gradient[kMost];
  void* exp_avg[kMost];
  void* exp_avg_sq[kMost];
  void* copy[kMost];  ///< null: none
  long long size[kMost];
  int first_block[kMost];
  int count;
};

struct AdamNumbers {
  float lr, beta1, beta2, weight_decay, eps, correction1, root_of_correction2;
  int is_decay_decoupled;
};
static_assert(AdamTable::kMost == 72 && AdamTable::kElementsOfBlock == 16384 && AdamTable::kThreads == 256 &&
                  sizeof(AdamTable) + sizeof(AdamNumbers) <= 4096,
              "as below, and as launches take it");

/// CUDA C of `adam_{bf16,f16}(AdamTable, AdamNumbers)`: a step of Adam in fp32, which reads the gradient and writes
/// parameter, state and the parameter's copy in that type. Each element's arithmetic is that of libtorch's fused Adam,
/// in its order. What is read and written once is kept out of the way of what a cache has (ldcs, stcs).
inline constexpr char kAdamText[] = R"(
struct Table {
  float* parameter[72]; const float* gradient[72]; float* exp_avg[72]; float* exp_avg_sq[72];
  void* copy[72]; long long size[72]; int first_block[72]; int count;
};
struct Numbers {
  float lr, beta1, beta2, weight_decay, eps, correction1, root_of_correction2; int is_decay_decoupled;
};
template <class Copy> struct alignas(8) Four { Copy at[4]; };
__device__ void update(float& p, float g, float& m, float& v, const Numbers& by) {
  if (by.weight_decay != 0) {
    if (by.is_decay_decoupled) p -= by.lr * by.weight_decay * p;
    else g += p * by.weight_decay;
  }
  m = fmaf(by.beta1, m, fmaf(-by.beta1, g, g));
  v = fmaf(by.beta2, v, fmaf(-by.beta2, g * g, g * g));
  p -= by.lr / by.correction1 * m / (sqrtf(v) / by.root_of_correction2 + by.eps);
}
template <class Copy> __device__ void adam(const Table& table, const Numbers& by) {
  int t = 0;
  for (int beyond = table.count; t + 1 < beyond;) {
    const int middle = (t + beyond) / 2;
    if (table.first_block[middle] <= (int)blockIdx.x) t = middle; else beyond = middle;
  }
  float* __restrict__ const p = table.parameter[t];
  const float* __restrict__ const g = table.gradient[t];
  float* __restrict__ const m = table.exp_avg[t];
  float* __restrict__ const v = table.exp_avg_sq[t];
  Copy* __restrict__ const c = (Copy*)table.copy[t];
  const long long begin = (long long)((int)blockIdx.x - table.first_block[t]) * 16384;
  const long long end = begin + 16384 < table.size[t] ? begin + 16384 : table.size[t];
  typedef unsigned long long Address;
  const bool aligned = (((Address)p | (Address)g | (Address)m | (Address)v) & 15) == 0 && ((Address)c & 7) == 0;
  const long long fours_end = aligned ? begin + (end - begin) / 4 * 4 : begin;
  for (long long i = begin + 4 * threadIdx.x; i < fours_end; i += 4 * 256) {
    float4 p4 = __ldcs((const float4*)(p + i)), m4 = __ldcs((const float4*)(m + i));
    float4 v4 = __ldcs((const float4*)(v + i));
    const float4 g4 = __ldcs((const float4*)(g + i));
    update(p4.x, g4.x, m4.x, v4.x, by);
    update(p4.y, g4.y, m4.y, v4.y, by);
    update(p4.z, g4.z, m4.z, v4.z, by);
    update(p4.w, g4.w, m4.w, v4.w, by);
    __stcs((float4*)(p + i), p4);
    __stcs((float4*)(m + i), m4);
    __stcs((float4*)(v + i), v4);
    if (c == 0) continue;
    Four<Copy> rounded;
    store(rounded.at[0], p4.x);
    store(rounded.at[1], p4.y);
    store(rounded.at[2], p4.z);
    store(rounded.at[3], p4.w);
    *(Four<Copy>*)(c + i) = rounded;
  }
  for (long long i = fours_end + threadIdx.x; i < end; i += 256) {
    update(p[i], g[i], m[i], v[i], by);
    if (c != 0) store(c[i], p[i]);
  }
}
extern "C" __global__ void __launch_bounds__(256)
adam_bf16(const __grid_constant__ Table table, const __grid_constant__ Numbers by) { adam<Brain>(table, by); }
extern "C" __global__ void __launch_bounds__(256)
adam_f16(const __grid_constant__ Table table, const __grid_constant__ Numbers by) { adam<Half>(table, by); }
)";

inline constexpr KernelSource kAdamKernels{"adam.cu", kAdamText};

}  // namespace autopar
