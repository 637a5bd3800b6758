#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "torch/kernels/strided_copy_source.hpp"

namespace autopar {

/// to.copy_(from), in packs of 16 bytes where both are on one device that compiles kernels, of one type and sizes, and
/// lie in rows of whole packs; libtorch copies what lies otherwise element by element.
void copy_strided(const at::Tensor& to, const at::Tensor& from);

/// How both lie, as few and long rows as possible; none if not in whole packs, or in more dims.
[[nodiscard]] std::optional<StridedRows> rows_of_both(const at::Tensor& to, const at::Tensor& from);

}  // namespace autopar
