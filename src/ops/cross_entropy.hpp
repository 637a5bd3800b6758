#pragma once

#include <cstdint>
#include <optional>

#include <autopar/capture/op_def.hpp>

namespace autopar::ops {

/// Arguments of aten::cross_entropy_loss.
struct CrossEntropyArgument {
  enum : std::int32_t { kLogits, kTarget, kWeight, kReduction, kIgnoreIndex, kLabelSmoothing };
};

/// Types cross entropy of logits, or of the features that they are made of.
[[nodiscard]] BatchTyping class_loss(const OpCall& op);

/// Of cross entropy whose log-probabilities take so many bytes, which only the op knows.
[[nodiscard]] SavedBytes saved_by_cross_entropy(const OpCall& op, const Affine& log_probabilities);
/// The gradient of the log-probabilities is there while their operand's is made, unless it is made in their place.
[[nodiscard]] OpWorkspace workspace_of_cross_entropy(const OpCall& op);

/// Logits that shards have by classes: targets are indices, and the loss is of single precision or wider.
/// @param widens  it computes in single precision whatever the logits' type
[[nodiscard]] ShardedOp shard_classes(ShardCall& call, bool widens);
/// Statistics of each row, which lie side by side for all shards.
[[nodiscard]] std::optional<Affine> statistics_of_shards(const OpCall& op);

}  // namespace autopar::ops
