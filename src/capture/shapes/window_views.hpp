#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

namespace autopar::shapes {

/// The tensor `x.as_strided(sizes, strides, offset)`, made by views that name dims instead of memory positions: slice,
/// select, unfold, permute, expand. Replays may use other memory layouts than the capture, and a slice is part of a
/// batch. Only views of dims keep their meaning there. At most two dims of the result may run over one dim of `x`
/// (windows).
/// @param offset  counted from the first element of x
/// @return nullopt if it is not expressible by these views
[[nodiscard]] std::optional<at::Tensor> as_views(const at::Tensor& x, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                                                 std::int64_t offset);

}  // namespace autopar::shapes
