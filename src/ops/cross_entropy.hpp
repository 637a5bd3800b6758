#pragma once

#include <cstdint>
#include <optional>

#include <autopar/capture/op_def.hpp>

namespace autopar::ops {

/// Arguments of aten::cross_entropy_loss.
struct CrossEntropyArgument {
  enum : std::int32_t { kLogits, kTarget, kWeight, kReduction, kIgnoreIndex, kLabelSmoothing };
};

/// Types cross entropy of logits, or of the features from which they are computed.
[[nodiscard]] BatchTyping class_loss(const OpCall& op);

/// Saved bytes of cross entropy. @param log_probabilities bytes of the log-probabilities, which are internal to the op
[[nodiscard]] SavedBytes saved_by_cross_entropy(const OpCall& op, const Affine& log_probabilities);
/// Workspace of cross entropy: the gradient of the log-probabilities, while their operand's gradient is made. None if
/// that gradient overwrites the log-probabilities.
[[nodiscard]] OpWorkspace workspace_of_cross_entropy(const OpCall& op);

/// Sharding rule for logits in slices of classes. Targets must be indices, and the loss of single precision or wider.
/// @param widens  the operator computes in single precision for any type of logits
[[nodiscard]] ShardedOp shard_classes(ShardCall& call, bool widens);
/// Bytes of the statistics of each row, for all shards side by side.
[[nodiscard]] std::optional<Affine> statistics_of_shards(const OpCall& op);

}  // namespace autopar::ops
