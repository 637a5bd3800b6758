#pragma once

namespace cuda_on_cpu {

/// Kernels with the faults that the harness is there to see, and two that look like one and are none.
inline constexpr char kWrongText[] = R"(
#define KERNEL(name) extern "C" __global__ void name(const float* from, float* to, int count)

__device__ int place() { return blockIdx.x * blockDim.x + threadIdx.x; }

KERNEL(copies) { if (place() < count) to[place()] = from[place()]; }
KERNEL(reads_behind) { if (place() < count) to[place()] = from[place() + 1]; }
KERNEL(reads_before) { if (place() < count) to[place()] = from[place() - 1024]; }
KERNEL(writes_behind) { to[place() + 1] = 1; }
KERNEL(writes_what_is_read) { if (place() < count) ((float*)from)[place()] = 1; }
KERNEL(reads_misaligned_packs) {
  const Pack<float> taken = *(const Pack<float>*)(from + 1);
  to[0] = taken.at[0];
}
KERNEL(indexes_beyond_an_array) {
  float own[4] = {from[0], from[1], from[2], from[3]};
  to[0] = own[count];
}

// Neighbours change places.
__device__ void exchange_neighbours(const float* from, float* to, int count, bool waits) {
  __shared__ float shared[64];
  shared[threadIdx.x] = from[threadIdx.x];
  if (waits) __syncthreads();
  to[threadIdx.x] = shared[threadIdx.x ^ 1];
}
KERNEL(exchanges) { exchange_neighbours(from, to, count, true); }
KERNEL(exchanges_without_barrier) { exchange_neighbours(from, to, count, false); }
// Sums of two warps, twice: where the second overwrites the first, a warp may do so before the other has read it.
__device__ float sum_of_warps(float own, int row) {
  __shared__ float shared[2][2];
  for (int part = 16; part > 0; part /= 2) own += __shfl_xor_sync(~0u, own, part);
  if (threadIdx.x % 32 == 0) shared[row][threadIdx.x / 32] = own;
  __syncthreads();
  return shared[row][0] + shared[row][1];
}
KERNEL(adds_twice) { to[threadIdx.x] = sum_of_warps(sum_of_warps(from[threadIdx.x], 0), 1); }
KERNEL(adds_twice_in_one_place) { to[threadIdx.x] = sum_of_warps(sum_of_warps(from[threadIdx.x], 0), 0); }
KERNEL(reads_what_no_thread_has_written) {
  __shared__ float shared[64];
  if (threadIdx.x + 1 < blockDim.x) shared[threadIdx.x] = from[threadIdx.x];
  __syncthreads();
  to[threadIdx.x] = shared[threadIdx.x];
}
KERNEL(adds_blocks_in_turn) { if (threadIdx.x == 0) atomicAdd(to, from[blockIdx.x]); }

KERNEL(waits_apart) {
  if (threadIdx.x < 32) __syncthreads();
  else if (count > 0) __syncthreads();
}
KERNEL(waits_for_a_warp_that_waits_for_the_block) {
  if (threadIdx.x == 0) __syncthreads();
  to[threadIdx.x] = __shfl_xor_sync(~0u, from[threadIdx.x], 1);
}
KERNEL(goes_on_when_others_have_ended) {
  if (threadIdx.x >= 32) return;
  __syncthreads();
  to[threadIdx.x] = __shfl_xor_sync(~0u, from[threadIdx.x], 1);
}
KERNEL(reads_a_lane_that_has_ended) {
  if (threadIdx.x == 1) return;
  to[threadIdx.x] = __shfl_xor_sync(~0u, from[threadIdx.x], 1);
}
KERNEL(shuffles_outside_of_the_mask) { to[threadIdx.x] = __shfl_down_sync(0xffff, from[threadIdx.x], 1); }
KERNEL(shuffles) {
  const float x = from[threadIdx.x];
  to[threadIdx.x] = 1000 * __shfl_sync(~0u, x, 3) + __shfl_down_sync(~0u, x, 1) + 100 * __shfl_up_sync(~0u, x, 2);
}

extern "C" __global__ void to_half(const float* from, Half* to, int count) { if (place() < count) store(to[place()], from[place()]); }
extern "C" __global__ void to_brain(const float* from, Brain* to, int count) { if (place() < count) store(to[place()], from[place()]); }
extern "C" __global__ void of_half(const Half* from, float* to, int count) { if (place() < count) to[place()] = number(from[place()]); }
)";

}  // namespace cuda_on_cpu
