#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/shard/placed.hpp>

namespace autopar {

/// The k largest of each row of [N, C] and their classes, both [N, k] and on all ranks, in falling order, of logits
/// that are sharded by class or on all ranks. One all-gather of 2·N·k numbers a rank: its own candidates; the logits
/// stay. Without gradients. @throws InvalidArgument for logits that lie otherwise, and for k outside [1, C]
[[nodiscard]] std::pair<at::Tensor, at::Tensor> top_k(const Placed& logits, std::int64_t k);

/// For each k, of the rows that are not ignored: the part whose target is among the k largest; double, on all ranks.
///
///     top_k_accuracy(logits, target, {1, 5})
[[nodiscard]] at::Tensor top_k_accuracy(const Placed& logits, const at::Tensor& target,
                                        const std::vector<std::int64_t>& ks, std::int64_t ignore_index = -100);

}  // namespace autopar
