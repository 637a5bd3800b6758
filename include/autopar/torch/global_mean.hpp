#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include <autopar/runtime/world.hpp>

namespace autopar {

/// Σ over ranks of `local_sum` / Σ over ranks of `local_count`, the same on every rank: the exact mean of a loss that is
/// computed outside the model, from results in output mode. Its backward gives `local_sum` the gradient g / Σ counts; as
/// the backward of the model sums over ranks, that is the gradient of the mean over the global batch.
///
/// Collective. A rank without samples passes a zero and 0. @throws InvalidArgument if all counts are zero, or `local_sum`
/// has more than one element
[[nodiscard]] at::Tensor global_mean(World& world, const at::Tensor& local_sum, std::int64_t local_count);

}  // namespace autopar
