#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include <autopar/runtime/world.hpp>

namespace autopar {

/// Σ over ranks of `local_sum` / Σ over ranks of `local_count`, the same on every rank: the exact mean of a loss that
/// is computed outside the model. All ranks compute their sums by the same code, of: results of their own samples;
/// results that all ranks have (sums, means, losses), of which each rank's sum has an addend of the gradient; results
/// of global_mean; tensors without gradients. The mean's gradients are those of one process on the whole batch. `.grad`
/// of leaf tensors that are no model's parameters is what this rank's sum adds to it.
///
/// Its result may be used further, as long as what is made of it is the same on every rank or ends in a global_mean
/// itself. A sum with count 0 is ignored, whatever its value. Collective, its backward too.
/// @throws InvalidArgument on every rank if all counts are zero, sums depend on different things, a sum contains
/// parameters of
///         the model (add their terms to the mean), or, in the backward, gradients of what all ranks have differ
[[nodiscard]] at::Tensor global_mean(World& world, const at::Tensor& local_sum, std::int64_t local_count);

}  // namespace autopar
