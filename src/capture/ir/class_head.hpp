#pragma once

#include <cstdint>
#include <string_view>

namespace autopar {

/// A linear layer and the cross entropy of its result in one operator, whose logits are made piece by piece:
/// linear_cross_entropy(features [N, D], projection [C, D], projection_bias [C]?, target [N], weight [C]?, reduction,
/// ignore_index, label_smoothing). No program is captured with it; `fold_class_heads` puts it there.
inline constexpr std::string_view kLinearCrossEntropy = "autopar::linear_cross_entropy";

/// Its arguments.
struct ClassHeadArgument {
  enum : std::int32_t {
    kFeatures,
    kProjection,
    kProjectionBias,
    kTarget,
    kWeight,
    kReduction,
    kIgnoreIndex,
    kLabelSmoothing,
    kCount
  };
};

/// Elements of logits that are there at a time: as many, or so large a part of all logits if that is more.
inline constexpr double kLeastClassHeadChunk = 1 << 22;
inline constexpr double kMostClassHeadChunks = 16;

}  // namespace autopar
