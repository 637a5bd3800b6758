#pragma once

#include <compare>
#include <cstdint>
#include <map>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <autopar/capture/op_graph.hpp>

#include "torch/interpret/slice.hpp"

namespace autopar {

/// What the draws of one operator on one slice are keyed by, beside the call.
struct DrawSite {
  OpId op;
  std::int64_t first_sample = -1;  ///< -1: all slices draw alike
  int shard = 0;                   ///< of the operator's result, where tensor shards have slices of it

  friend auto operator<=>(const DrawSite&, const DrawSite&) = default;
};

/// Seeds of a recorded step's draws. They lie in memory of the device, where kernels read them, and each run of the
/// recording is given those of its call.
class RecordedSeeds {
 public:
  /// @param most  draw sites of a step
  RecordedSeeds(c10::Device device, std::int64_t most);

  /// Whether draws of now are recorded; else they have the seeds of their call as numbers.
  [[nodiscard]] bool are_recorded() const { return are_recorded_; }
  void set_recorded(bool recorded) { are_recorded_ = recorded; }

  /// [2] i64 on the device: the seed, and 0. A site that draws twice (recomputation) has one.
  /// @throws Error if there are more sites than places
  [[nodiscard]] at::Tensor place(const DrawSite& site);
  /// From now on, in the order of this thread's stream, places hold the seeds of a call. They keep their version, at
  /// which a backward has saved them.
  void set(const DrawKey& key);

 private:
  at::Tensor memory_;  ///< [most, 2] i64
  std::map<DrawSite, std::int64_t> places_;
  bool are_recorded_ = false;
};

}  // namespace autopar
