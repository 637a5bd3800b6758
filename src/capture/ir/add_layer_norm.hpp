#pragma once

#include <cstdint>
#include <string_view>

namespace autopar {

/// The sum of two tensors of the same sizes and its layer norm over the last dim, in one operator with these two
/// results: add_layer_norm(input, residual, normalized_shape, weight?, bias?, eps, cudnn_enable, p, seed?). Where p is
/// not 0, elements of the input are dropped before, as aten::dropout does in training, by the draws of the seed (a
/// DrawSeed as a tensor). Without a seed the default generator draws. No program is captured with it;
/// `fold_layer_norms` puts it there.
inline constexpr std::string_view kAddLayerNorm = "autopar::add_layer_norm";

/// Its arguments.
struct AddLayerNormArgument {
  enum : std::int32_t { kInput, kResidual, kShape, kWeight, kBias, kEps, kCudnnEnable, kP, kSeed, kCount };
};

}  // namespace autopar
