#pragma once

#include <cstdint>
#include <string_view>

namespace autopar {

/// The cross entropy of class indices in single precision of logits [N, C] in 16 bits, or in single precision already:
/// aten::cross_entropy_loss(to(float) of its first argument, …), with the same arguments and no label smoothing.
/// Kernels of the library's own need no logits in single precision. No program is captured with it;
/// `fold_class_loss_casts` puts it there.
inline constexpr std::string_view kCrossEntropy = "autopar::cross_entropy_loss";

/// Arguments of aten::cross_entropy_loss.
struct CrossEntropyArgument {
  enum : std::int32_t { kLogits, kTarget, kWeight, kReduction, kIgnoreIndex, kLabelSmoothing };
};

}  // namespace autopar
