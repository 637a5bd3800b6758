#pragma once

#include <vector>

#include <autopar/capture/op_def.hpp>

namespace autopar::ops {

/// The type of a loss with `reduction`. Sum: slices add up. Mean: over a number of elements proportional to the
/// samples, so slice means are weighted by n/N.
[[nodiscard]] BatchTyping reduced(const OpCall& op, BatchType unreduced);
/// `target` holds class indices, into dim 1 of the first tensor.
[[nodiscard]] std::vector<PickedDim> picks_targets(const OpCall& op);

}  // namespace autopar::ops
