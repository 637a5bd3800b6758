#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernels/strided_copy_source.hpp"

namespace autopar::fused {

/// to.copy_(from), in packs of 16 bytes where both are on one device that compiles kernels, of one type and sizes, and
/// lie in rows of whole packs; libtorch copies what lies otherwise element by element.
void copy_strided(const at::Tensor& to, const at::Tensor& from);

/// How both lie, as few and long rows as possible; none if not in whole packs, or in more dims.
[[nodiscard]] std::optional<kernels::StridedRows> rows_of_both(const at::Tensor& to, const at::Tensor& from);

/// Elements, and how far they lie apart in both.
struct CopiedDim {
  std::int64_t size, to, from;
};

/// Dims of more than one element, as they lie in the destination, outermost first.
[[nodiscard]] std::vector<CopiedDim> dims_of_both(const at::Tensor& to, const at::Tensor& from);
/// Neighbours that are one dim in both are joined.
[[nodiscard]] std::vector<CopiedDim> joined_dims(const std::vector<CopiedDim>& dims);

}  // namespace autopar::fused
