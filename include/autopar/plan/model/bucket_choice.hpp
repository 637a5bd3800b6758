#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <autopar/core/cluster.hpp>
#include <autopar/plan/buckets.hpp>
#include <autopar/plan/model/workload.hpp>
#include <autopar/plan/request.hpp>

namespace autopar {

/// The smallest buckets, doubled from `BucketPolicy::kLeast`, of which what a sum takes whatever its size (latency,
/// launches) is at most a fiftieth of what its bytes take; but no more than an eighth of a stage's gradients, as the
/// first sum begins when the first bucket is full and nothing hides the last. CPUs get the smallest ones.
/// @param constraints  world and number of stages
[[nodiscard]] inline BucketPolicy chosen_buckets(const Workload& work, const Cluster& cluster,
                                                 const Constraints& constraints) {
  constexpr double kFixedShare = 0.02;
  constexpr int kBucketsOfAStage = 8;
  BucketPolicy policy;
  if (!cluster.host || constraints.world < 2) return policy;
  Bytes trained{};
  for (const ParameterProfile& parameter : work.parameters) trained += parameter.trainable ? parameter.bytes : Bytes(0);
  const std::int64_t pieces = std::int64_t{kBucketsOfAStage} * std::max(1, constraints.stages);
  const std::int64_t grid = BucketPolicy::kLeast.value();
  const Bytes limit(std::min(BucketPolicy::kMost.value(), trained.value() / pieces / grid * grid));
  if (limit <= policy.size) return policy;
  std::vector<Rank> everyone;
  for (int rank = 0; rank < constraints.world; ++rank) everyone.emplace_back(rank);
  const Seconds fixed = work.all_reduce(Bytes(0), everyone);
  const auto is_too_small = [&](Bytes size) { return fixed > (work.all_reduce(size, everyone) - fixed) * kFixedShare; };
  while (policy.size < limit && is_too_small(policy.size)) policy.size = std::min(policy.size * 2, limit);
  return policy;
}

}  // namespace autopar
