#pragma once

#include <ATen/core/Tensor.h>

#include "capture/replay/replay.hpp"
#include "torch/fused/draw_seed.hpp"

namespace autopar::fused {

/// libtorch's dropout in training, 0 < p <= 1, with the draws of a seed.
/// @param in_place  the input's own memory takes the result
[[nodiscard]] at::Tensor seeded_dropout(const at::Tensor& input, double p, const DrawSeed& seed, bool in_place = false);

/// Runs a dropout of the program by a seed. @return whether the operator is one; nothing is run otherwise
[[nodiscard]] bool proceed_by_seed(ReplayCall& call, const DrawSeed& seed);

}  // namespace autopar::fused
