#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernels/strided_copy_source.hpp"

namespace autopar::fused {

/// to.copy_(from), in packs of 16 bytes if possible. Both tensors must be on one device that compiles kernels, have the
/// same type and sizes, and consist of vectorised rows. libtorch copies other layouts element by element.
void copy_strided(const at::Tensor& to, const at::Tensor& from);

/// The common rows of both tensors, as few and as long as possible. None if they are not in whole packs, or have too
/// many dims.
[[nodiscard]] std::optional<kernels::StridedRows> rows_of_both(const at::Tensor& to, const at::Tensor& from);

/// The size of a dim, and its strides in both tensors.
struct CopiedDim {
  std::int64_t size, to, from;
};

/// Dims of more than one element, in the destination's order, outermost first.
[[nodiscard]] std::vector<CopiedDim> dims_of_both(const at::Tensor& to, const at::Tensor& from);
/// Joins neighbouring dims that are one dim in both tensors.
[[nodiscard]] std::vector<CopiedDim> joined_dims(const std::vector<CopiedDim>& dims);

}  // namespace autopar::fused
