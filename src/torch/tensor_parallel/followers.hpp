#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <autopar/capture/op_graph.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "torch/tensor_parallel/shard_typing.hpp"
#include "torch/tensor_parallel/tensor_candidates.hpp"

namespace autopar::tensor_parallel {

/// A sequence-parallel region: operators that follow a candidate and work on slices of tokens if the candidate's sum is
/// left in slices. It contains norms, dropout and residuals, up to the next candidate, which gathers the slices.
struct Follower {
  std::size_t leader = 0;            ///< index of the candidate
  std::vector<OpId> ops{};           ///< ascending
  std::int64_t tokens = 0;           ///< an upper bound on the number of shards
  std::vector<ValueId> sums{};       ///< sums of the candidate, each reduced only on the shard that has the slice
  std::vector<ValueId> brought{};    ///< values in slices that are gathered
  std::vector<ValueId> assembled{};  ///< of these, values that a candidate reads and would otherwise have copied
  std::vector<ValueId> spread{};     ///< replicated values; each shard takes its slice
  std::vector<ValueId> copied{};     ///< replicated values whose gradients are summed
};
struct Followers {
  ShardedLayout layout;  ///< of the whole program as one stage
  std::vector<Follower> all;
};

/// The regions of candidates in one program; an empty one for a candidate that nothing follows.
/// @cost O(operators of candidates and after them)
[[nodiscard]] Followers find_followers(const OpGraph& graph, const algebra::BatchSemantics& plan,
                                       const std::vector<TensorCandidate>& candidates);

}  // namespace autopar::tensor_parallel
