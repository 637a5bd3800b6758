#pragma once

#include "kernels/kernel_source.hpp"

namespace autopar {

/// How the kernels between the layouts of weights are launched: a block has all places of some inputs of one output.
struct ChannelsLastCopyShape {
  static constexpr unsigned kLanes = 32, kWarps = 8;  ///< threads
  static constexpr int kChunk = 64;                   ///< inputs of a warp: a line of 128 bytes in 16 bits
  static constexpr int kMostPlaces = 49;
  static constexpr int kRoom = kMostPlaces * kChunk;  ///< numbers of a block in shared memory

  /// What lies between two inputs in shared memory: an odd number, so that lanes meet in few banks.
  [[nodiscard]] static constexpr int pitch(int places) { return places | 1; }
  /// Inputs of a block, in whole chunks, as even as they go.
  [[nodiscard]] static constexpr int tile(int inputs, int places) {
    const int most = kRoom / pitch(places) / kChunk * kChunk;
    const int tiles = (inputs + most - 1) / most, even = (inputs + tiles - 1) / tiles;
    return (even + kChunk - 1) / kChunk * kChunk;
  }
};
static_assert(ChannelsLastCopyShape::kLanes == 32 && ChannelsLastCopyShape::kWarps == 8 &&
                  ChannelsLastCopyShape::kChunk == 64 && ChannelsLastCopyShape::kMostPlaces == 49,
              "as in the text");

/// CUDA C of copies between weights in single precision [outputs, inputs, places] and in 16 bits [outputs, places,
/// inputs], through shared memory, so that both sides move whole lines. Block = output * tiles + tile; 2 to 49 places.
///  `to_channels_last_T`    casts and lays out
///  `from_channels_last_T`  back; to what is there if `adds`
/// All that a thread reads is in flight at once. Of an odd number of inputs pairs do not begin where 4 bytes do.
extern const KernelSource kChannelsLastCopyKernels;

}  // namespace autopar
