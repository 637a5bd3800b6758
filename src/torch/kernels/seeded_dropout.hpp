#pragma once

#include <ATen/core/Tensor.h>

#include "torch/kernels/draw_seed.hpp"

namespace autopar {

/// libtorch's dropout in training, 0 < p <= 1, with the draws of a seed.
/// @param in_place  the input's own memory takes the result
[[nodiscard]] at::Tensor seeded_dropout(const at::Tensor& input, double p, const DrawSeed& seed, bool in_place = false);

}  // namespace autopar
