#pragma once

#include <compare>
#include <cstdint>
#include <map>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <autopar/capture/op_graph.hpp>

#include "torch/interpret/slice.hpp"

namespace autopar::interpret {

/// The part of the RNG key that identifies one operator on one slice; the rest identifies the call.
struct RngSite {
  OpId op;
  std::int64_t first_sample = -1;  ///< -1: all slices draw the same numbers
  int shard = 0;                   ///< shard of the operator's result, if tensor shards have slices of it

  friend auto operator<=>(const RngSite&, const RngSite&) = default;
};

/// Philox seeds of a recorded step's draws. They are in the device's memory, where kernels read them. Before each run
/// of the recording, `set` writes the seeds of its call.
class RecordedSeeds {
 public:
  /// @param most  the most draw sites of a step
  RecordedSeeds(c10::Device device, std::int64_t most);

  /// Whether current draws are being recorded; otherwise they take the seeds of their call as numbers.
  [[nodiscard]] bool are_recorded() const { return are_recorded_; }
  void set_recorded(bool recorded) { are_recorded_ = recorded; }

  /// [2] i64 on the device: the seed, and 0. A site that draws twice (recomputation) has one place.
  /// @throws Error if there are more sites than places
  [[nodiscard]] at::Tensor place(const RngSite& site);
  /// Sets the seeds of a call, in the order of this thread's stream. The places' versions do not change, because
  /// backwards have saved them.
  void set(const RngKey& key);

 private:
  at::Tensor memory_;  ///< [most, 2] i64
  std::map<RngSite, std::int64_t> places_;
  bool are_recorded_ = false;
};

}  // namespace autopar::interpret
