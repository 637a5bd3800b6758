#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include <autopar/runtime/world.hpp>

namespace autopar {

/// Σ over ranks of `local_sum` / Σ over ranks of `local_count`: the exact mean of a loss that is computed outside the
/// model. The result is the same on every rank. Collective, and so is its backward.
///
/// All ranks compute their sums by the same code. A sum may depend on results of this rank's samples, results that all
/// ranks have (sums, means, losses), results of global_mean, and tensors without gradients. The gradients are those of
/// one process on the whole batch. For a result that all ranks have, each rank's sum contributes one addend of the
/// gradient. A leaf tensor that is not a parameter of a model gets in `.grad` the contribution of this rank's sum.
///
/// The result may be used further if what is computed from it is the same on every rank or is passed to a global_mean.
/// A sum with count 0 is ignored, whatever its value.
/// @throws InvalidArgument, on every rank, if all counts are zero or the ranks' sums depend on different things
/// @throws InvalidArgument, on every rank, if a sum contains parameters of the model: add their terms to the mean
/// @throws InvalidArgument, in the backward, if the ranks' gradients of a result that all ranks have differ
[[nodiscard]] at::Tensor global_mean(World& world, const at::Tensor& local_sum, std::int64_t local_count);

}  // namespace autopar
