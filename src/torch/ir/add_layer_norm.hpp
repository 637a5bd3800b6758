#pragma once

#include <cstdint>
#include <string_view>

namespace autopar {

/// The sum of two tensors of the same sizes and its layer norm over the last dim, in one operator with these two
/// results: add_layer_norm(input, residual, normalized_shape, weight?, bias?, eps, cudnn_enable). No program is
/// captured with it; `fold_layer_norms` puts it there.
inline constexpr std::string_view kAddLayerNorm = "autopar::add_layer_norm";

/// Its arguments.
struct AddLayerNormArgument {
  enum : std::int32_t { kInput, kResidual, kShape, kWeight, kBias, kEps, kCudnnEnable, kCount };
};

}  // namespace autopar
