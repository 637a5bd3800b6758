#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <autopar/capture/op_graph.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "torch/tensor_parallel/shard_typing.hpp"
#include "torch/tensor_parallel/tensor_candidates.hpp"

namespace autopar::tensor_parallel {

/// What lies behind a candidate and works on slices of tokens if the candidate's sum is left in them: norms, dropout,
/// residuals, up to the next candidate, which brings the slices together.
struct Follower {
  std::size_t leader = 0;            ///< place of the candidate
  std::vector<OpId> ops{};           ///< ascending
  std::int64_t tokens = 0;           ///< at most so many shards
  std::vector<ValueId> sums{};       ///< of the candidate, each shard's slice of which is added up on it alone
  std::vector<ValueId> brought{};    ///< values in slices that are brought together
  std::vector<ValueId> assembled{};  ///< those of them that a candidate reads, which it would have copied otherwise
  std::vector<ValueId> spread{};     ///< whole values of which each shard takes its slice
  std::vector<ValueId> copied{};     ///< whole values whose gradients are added up
};
struct Followers {
  ShardedLayout layout;  ///< of the whole program as one stage
  std::vector<Follower> all;
};

/// Those of candidates in one program; none for a candidate that nothing follows.
/// @cost O(operators of candidates and behind them)
[[nodiscard]] Followers find_followers(const OpGraph& graph, const algebra::BatchSemantics& plan,
                                       const std::vector<TensorCandidate>& candidates);

}  // namespace autopar::tensor_parallel
