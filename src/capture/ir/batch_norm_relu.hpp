#pragma once

#include <cstdint>
#include <string_view>

namespace autopar {

/// A batch norm in training mode, the addition of a tensor of the same sizes and ReLU in one operator:
/// relu(batch_norm(…) + residual), either of which may be left out. Its first arguments are those of aten::batch_norm.
/// Its result comes twice, see `OpTrait::kDuplicatedOutputs`; graphs name the first.
/// No program is captured with it; `fold_batch_norms` puts it there.
inline constexpr std::string_view kBatchNormRelu = "autopar::batch_norm_relu";

/// Its arguments.
struct BatchNormArgument {
  enum : std::int32_t {
    kInput,
    kWeight,
    kBias,
    kRunningMean,
    kRunningVar,
    kTraining,
    kMomentum,
    kEps,
    kCudnnEnabled,
    kResidual,
    kRelu,
    kCount
  };
};

}  // namespace autopar
