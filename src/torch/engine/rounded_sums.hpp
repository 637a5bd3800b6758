#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Stream.h>

#include <autopar/core/ids.hpp>
#include <autopar/plan/buckets.hpp>
#include <autopar/runtime/stage_engine.hpp>

#include "torch/fused/addends.hpp"

namespace autopar::engine {

/// Sums of fp32 gradients over ranks that send each partial sum once, in bf16. A member casts what the members sent of
/// its part to fp32 and adds it in the order of ranks; its own addend is rounded like the others. So the bits depend on
/// neither the transport nor who adds. Infinite and NaN addends stay so, and what is larger than bf16's largest number
/// becomes infinite.

/// Whether gradients are summed so. Others are never rounded.
[[nodiscard]] inline bool are_rounded(c10::ScalarType gradients, const BucketPolicy& buckets) {
  return buckets.reduce_dtype == ReduceDtype::kBf16 && gradients == c10::ScalarType::Float;
}

/// Gradients of this rank, with an equal part for each member of a group.
struct RoundedBucket {
  at::Tensor flat;            ///< fp32, one dimension
  std::int64_t members = 1;   ///< of the group
  std::int64_t position = 0;  ///< of this rank among them

  /// @param ranks  of the group, ascending
  RoundedBucket(at::Tensor gradients, const std::vector<Rank>& ranks, Rank self);
  [[nodiscard]] std::int64_t part() const { return flat.numel() / members; }
};

/// Writes this rank's part of the sum to `shard`, fp32, or adds it.
void reduce_scatter(const RoundedBucket& bucket, const at::Tensor& shard, fused::Destination destination,
                    PartExchange& exchange);
/// Replaces the bucket by the sum, which is rounded to bf16 once more: all members have the same bits.
void all_reduce(const RoundedBucket& bucket, PartExchange& exchange);

/// Runs sums beside the computation, on devices with streams: one after the other on a second stream. A bucket's bf16
/// copy is freed in the order of that stream, so there is one at a time however many sums are under way.
class SummingStream {
 public:
  /// Passed when a sum is complete; empty on devices without streams, where it is complete at once.
  using Done = std::optional<c10::Event>;

  explicit SummingStream(c10::Device device);
  [[nodiscard]] Done run(const std::function<void()>& sum) const;
  /// Makes work that is enqueued on the current stream afterwards wait for a sum.
  void wait_for(Done& done) const;

 private:
  c10::Device device_;
  std::optional<c10::Stream> stream_;
};

}  // namespace autopar::engine
