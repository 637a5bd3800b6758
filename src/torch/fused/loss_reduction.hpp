#pragma once

#include <cstdint>

#include <ATen/core/Reduction.h>

#include <autopar/shard/cross_entropy.hpp>

namespace autopar::fused {

/// The reduction that an argument of an operator names.
[[nodiscard]] inline ParallelCrossEntropyOptions::reduction_t loss_reduction(std::int64_t reduction) {
  if (reduction == at::Reduction::None) return torch::kNone;
  if (reduction == at::Reduction::Sum) return torch::kSum;
  return torch::kMean;
}

}  // namespace autopar::fused
