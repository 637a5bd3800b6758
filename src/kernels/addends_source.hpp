#pragma once

#include "kernels/kernel_source.hpp"

namespace autopar::kernels {

/// Launch shape of the kernels that add up addends.
struct AddendsShape {
  static constexpr unsigned kThreads = 256;  ///< packs of a block
};
static_assert(AddendsShape::kThreads == 256, "as in the text");

inline constexpr char kAddendsText[] = R"(
constexpr int kThreads = 256, kNumbers = 8;

// In the order of members, from `sum` on.
__device__ inline void add_up(const Words<Brain>* addends, int members, long long packs, long long pack,
                              float (&sum)[kNumbers]) {
#pragma unroll 4
  for (int member = 0; member < members; ++member) {
    const Words<Brain> taken = addends[member * packs + pack];
#pragma unroll
    for (int v = 0; v < kNumbers; ++v) sum[v] += taken[v];
  }
}

extern "C" __global__ void __launch_bounds__(kThreads) add_up_f32(const Words<Brain>* addends, int members,
                                                                  long long packs, Pack<float>* sum, int adds) {
  const long long pack = (long long)blockIdx.x * kThreads + threadIdx.x;
  if (pack >= packs) return;
  float made[kNumbers] = {};
  if (adds) {
    const Pack<float> low = sum[2 * pack], high = sum[2 * pack + 1];
#pragma unroll
    for (int v = 0; v < 4; ++v) made[v] = low.at[v], made[v + 4] = high.at[v];
  }
  add_up(addends, members, packs, pack, made);
  write_sums(made, (float*)(sum + 2 * pack));
}

extern "C" __global__ void __launch_bounds__(kThreads) add_up_bf16(const Words<Brain>* addends, int members,
                                                                   long long packs, Words<Brain>* sum) {
  const long long pack = (long long)blockIdx.x * kThreads + threadIdx.x;
  if (pack >= packs) return;
  float made[kNumbers] = {};
  add_up(addends, members, packs, pack, made);
  Words<Brain> rounded;
#pragma unroll
  for (int v = 0; v < kNumbers; v += 2) rounded.put(v, made[v], made[v + 1]);
  sum[pack] = rounded;
}
)";

/// CUDA C of sums of bf16 addends [members, packs of 8], in fp32 and in the order of members. A thread makes a pack.
/// - `add_up_f32`: writes the sum in fp32; adds to the destination if `adds`.
/// - `add_up_bf16`: writes it in bf16, maybe over an addend.
inline constexpr KernelSource kAddendsKernels{"addends.cu", kAddendsText};

}  // namespace autopar::kernels
