#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/shard/placed.hpp>

namespace autopar {

/// The k largest logits of each row of [N, C] and their classes: both [N, k], descending, on all ranks. No gradient.
/// Logits are sharded by class or replicated, and are not sent. One all-gather of 2·N·k numbers for each rank.
/// @throws InvalidArgument for another placement, and for k outside [1, C]
[[nodiscard]] std::pair<at::Tensor, at::Tensor> top_k(const Placed& logits, std::int64_t k);

/// For each k, the share of rows whose target is among the k largest logits; ignored rows do not count. Float64, on all
/// ranks.
///
///     top_k_accuracy(logits, target, {1, 5})
[[nodiscard]] at::Tensor top_k_accuracy(const Placed& logits, const at::Tensor& target,
                                        const std::vector<std::int64_t>& ks, std::int64_t ignore_index = -100);

}  // namespace autopar
