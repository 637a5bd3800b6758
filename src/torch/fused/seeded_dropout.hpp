#pragma once

#include <ATen/core/Tensor.h>

#include "capture/replay/replay.hpp"
#include "torch/fused/philox_seed.hpp"

namespace autopar::fused {

/// libtorch's dropout in training, 0 < p <= 1, with a given Philox seed.
/// @param in_place  the result overwrites the input
[[nodiscard]] at::Tensor seeded_dropout(const at::Tensor& input, double p, const PhiloxSeed& seed,
                                        bool in_place = false);

/// Runs a dropout of the program with a Philox seed. @return whether the operator is a dropout; if not, nothing is run
[[nodiscard]] bool run_by_seed(replay::ReplayCall& call, const PhiloxSeed& seed);

}  // namespace autopar::fused
