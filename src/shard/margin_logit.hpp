#pragma once

#include <ATen/core/Tensor.h>

#include <autopar/shard/margin.hpp>

namespace autopar::detail {

/// @throws InvalidArgument for values outside those that `Margin` gives
void require_sound(const Margin& margin);

/// The target's logit, of its cosine; differentiable.
[[nodiscard]] at::Tensor margin_logit(const at::Tensor& cosine, const Margin& margin);
/// Its derivative.
[[nodiscard]] at::Tensor margin_slope(const at::Tensor& cosine, const Margin& margin);

}  // namespace autopar::detail
