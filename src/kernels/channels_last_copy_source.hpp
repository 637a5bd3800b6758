#pragma once

#include "kernels/kernel_source.hpp"

namespace autopar::kernels {

/// Launch shape of the kernels that copy weights between layouts. A block has all places of some inputs of one output.
struct ChannelsLastCopyShape {
  static constexpr unsigned kLanes = 32, kWarps = 8;  ///< threads
  static constexpr int kChunk = 64;                   ///< inputs of a warp: a 128-byte line of 16-bit elements
  static constexpr int kMostPlaces = 49;
  static constexpr int kRoom = kMostPlaces * kChunk;  ///< elements of a block in shared memory

  /// Elements between two inputs in shared memory. An odd number reduces bank conflicts.
  [[nodiscard]] static constexpr int pitch(int places) { return places | 1; }
  /// Inputs of a block: whole chunks, divided among blocks as evenly as possible.
  [[nodiscard]] static constexpr int tile(int inputs, int places) {
    const int most = kRoom / pitch(places) / kChunk * kChunk;
    const int tiles = (inputs + most - 1) / most, even = (inputs + tiles - 1) / tiles;
    return (even + kChunk - 1) / kChunk * kChunk;
  }
};
static_assert(ChannelsLastCopyShape::kLanes == 32 && ChannelsLastCopyShape::kWarps == 8 &&
                  ChannelsLastCopyShape::kChunk == 64 && ChannelsLastCopyShape::kMostPlaces == 49,
              "as in the text");

inline constexpr char kChannelsLastCopyText[] = R"(
constexpr int kLanes = 32, kWarps = 8, kThreads = kLanes * kWarps, kChunk = 64, kMostPlaces = 49;
constexpr int kRoom = kMostPlaces * kChunk;
constexpr int kOfThread = (kRoom + kThreads - 1) / kThreads, kChunksOfWarp = (kMostPlaces + kWarps - 1) / kWarps;
template <class T> struct alignas(2 * sizeof(T)) Pair { T at[2]; };

// The block's part: inputs [first, first + width) of an output.
struct Part {
  long long output;
  int first, width, pitch, chunks;
  __device__ Part(int inputs, int places, int tile, int tiles) : output(blockIdx.x / tiles), pitch(places | 1) {
    first = (int)(blockIdx.x % tiles) * tile;
    width = min(tile, inputs - first);
    chunks = (width + kChunk - 1) / kChunk;
  }
  __device__ long long single(int inputs, int places) const { return (output * inputs + first) * places; }
  __device__ long long half(int inputs, int places, int place) const {
    return (output * places + place) * inputs + first;
  }
};

// Where the i-th number of a part in single precision lies in shared memory.
__device__ inline int shared_place(int i, int places) { return places & 1 ? i : i + i / places; }

template <class T>
__device__ void to_channels_last(T* to, const float* from, int inputs, int places, int tile, int tiles) {
  __shared__ float shared[kRoom];
  const Part part(inputs, places, tile, tiles);
  const int thread = threadIdx.y * kLanes + threadIdx.x, all = part.width * places;
  from += part.single(inputs, places);
  float taken[kOfThread];
#pragma unroll
  for (int i = 0; i < kOfThread; ++i)
    if (thread + i * kThreads < all) taken[i] = from[thread + i * kThreads];
#pragma unroll
  for (int i = 0; i < kOfThread; ++i)
    if (thread + i * kThreads < all) shared[shared_place(thread + i * kThreads, places)] = taken[i];
  __syncthreads();
  for (int unit = threadIdx.y; unit < places * part.chunks; unit += kWarps) {
    const int place = unit / part.chunks, input = (unit - place * part.chunks) * kChunk + 2 * threadIdx.x;
    if (input >= part.width) continue;
    T* const there = to + part.half(inputs, places, place) + input;
    const float* const here = shared + input * part.pitch + place;
    if (inputs % 2 == 0) {
      Pair<T> pair;
      store(pair.at[0], here[0]);
      store(pair.at[1], here[part.pitch]);
      *reinterpret_cast<Pair<T>*>(there) = pair;
    } else {
      store(there[0], here[0]);
      if (input + 1 < part.width) store(there[1], here[part.pitch]);
    }
  }
}

template <class T>
__device__ void from_channels_last(float* to, const T* from, int inputs, int places, int tile, int tiles, int adds) {
  __shared__ float shared[kRoom];
  const Part part(inputs, places, tile, tiles);
  Pair<T> taken[kChunksOfWarp];
#pragma unroll
  for (int i = 0; i < kChunksOfWarp; ++i) {
    const int unit = threadIdx.y + i * kWarps, place = unit / part.chunks;
    const int input = (unit - place * part.chunks) * kChunk + 2 * threadIdx.x;
    if (place >= places || input >= part.width) continue;
    const T* const there = from + part.half(inputs, places, place) + input;
    if (inputs % 2 == 0) {
      taken[i] = *reinterpret_cast<const Pair<T>*>(there);
    } else {
      taken[i].at[0] = there[0];
      if (input + 1 < part.width) taken[i].at[1] = there[1];
    }
  }
#pragma unroll
  for (int i = 0; i < kChunksOfWarp; ++i) {
    const int unit = threadIdx.y + i * kWarps, place = unit / part.chunks;
    const int input = (unit - place * part.chunks) * kChunk + 2 * threadIdx.x;
    if (place >= places || input >= part.width) continue;
    float* const here = shared + input * part.pitch + place;
    here[0] = number(taken[i].at[0]);
    if (input + 1 < part.width) here[part.pitch] = number(taken[i].at[1]);
  }
  const int thread = threadIdx.y * kLanes + threadIdx.x, all = part.width * places;
  to += part.single(inputs, places);
  float sums[kOfThread];
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) sums[i] = adds && thread + i * kThreads < all ? to[thread + i * kThreads] : 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) {
    const int own = thread + i * kThreads;
    if (own >= all) continue;
    const float made = shared[shared_place(own, places)];
    to[own] = adds ? sums[i] + made : made;
  }
}

#define KERNELS(T, name)                                                                                        \
  extern "C" __global__ void __launch_bounds__(kThreads, 6) to_channels_last_##name(                            \
      T* to, const float* from, int inputs, int places, int tile, int tiles) {                                  \
    to_channels_last(to, from, inputs, places, tile, tiles);                                                    \
  }                                                                                                             \
  extern "C" __global__ void __launch_bounds__(kThreads, 6) from_channels_last_##name(                          \
      float* to, const T* from, int inputs, int places, int tile, int tiles, int adds) {                        \
    from_channels_last(to, from, inputs, places, tile, tiles, adds);                                            \
  }
KERNELS(Half, f16)
KERNELS(Brain, bf16)
)";

/// CUDA C of copies between weights in single precision [outputs, inputs, places] and in 16 bits [outputs, places,
/// inputs]. They go through shared memory, so that both sides move whole lines. Block = output * tiles + tile; 2 to 49
/// places.
/// - `to_channels_last_T`: casts and changes the layout.
/// - `from_channels_last_T`: the reverse; adds to the destination if `adds`.
///
/// All reads of a thread are in flight at once. With an odd number of inputs, pairs are not aligned to 4 bytes.
inline constexpr KernelSource kChannelsLastCopyKernels{"channels_last_copy.cu", kChannelsLastCopyText};

}  // namespace autopar::kernels
