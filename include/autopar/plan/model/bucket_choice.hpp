#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <autopar/core/cluster.hpp>
#include <autopar/plan/model/workload.hpp>
#include <autopar/plan/request.hpp>

namespace autopar {

/// The bucket size: `BucketPolicy::kLeast`, doubled until the fixed cost of a sum (latency, launches) is at most 2 % of
/// the transfer time. At most kMost, and at most an eighth of a stage's gradients. The first sum begins when the first
/// bucket is full, and nothing hides the last sum. CPUs and single ranks get kLeast.
/// @param constraints  world, number of stages, and the element type in which gradients are sent
[[nodiscard]] inline Bytes chosen_bucket_size(const Workload& work, const Cluster& cluster,
                                              const Constraints& constraints) {
  constexpr double kFixedShare = 0.02;
  constexpr int kBucketsOfAStage = 8;
  Bytes size = BucketPolicy::kLeast;
  if (!cluster.host || constraints.world < 2) return size;
  Bytes trained{};
  for (const ParameterProfile& parameter : work.parameters) trained += parameter.trainable ? parameter.bytes : Bytes(0);
  const std::int64_t pieces = std::int64_t{kBucketsOfAStage} * std::max(1, constraints.stages);
  const std::int64_t grid = BucketPolicy::kLeast.value();
  const Bytes limit(std::min(BucketPolicy::kMost.value(), trained.value() / pieces / grid * grid));
  if (limit <= size) return size;
  std::vector<Rank> everyone;
  for (int rank = 0; rank < constraints.world; ++rank) everyone.emplace_back(rank);
  const Seconds fixed = work.all_reduce(Bytes(0), everyone);
  const auto is_too_small = [&](Bytes bucket) {
    const Bytes sent = constraints.buckets.least_sent(bucket);
    return fixed > (work.all_reduce(sent, everyone) - fixed) * kFixedShare;
  };
  while (size < limit && is_too_small(size)) size = std::min(size * 2, limit);
  return size;
}

}  // namespace autopar
