#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

namespace autopar::detail {

/// The tensor that `x.as_strided(sizes, strides, offset)` is, made of views that name dims instead of places in memory:
/// slice, select, unfold, permute, expand. As replays lay tensors out otherwise than they were captured, and a share is
/// a part of a batch, only those mean the same there. At most two dims of the result may run over one of `x` (windows).
/// @param offset  counted from the first element of x
/// @return nullopt if no such views give it
[[nodiscard]] std::optional<at::Tensor> as_views(const at::Tensor& x, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                                                 std::int64_t offset);

}  // namespace autopar::detail
