#pragma once

#include <ATen/core/Tensor.h>

namespace autopar {

/// The same tensor, for operators of libtorch that make a result by `at::empty_like` of it and cannot be told where:
/// they get `place`.
///
///   at::empty_like(with_place_for_like(query, place)).data_ptr() == place.data_ptr()
///
/// Who calls the operator looks at what it returns: another version of libtorch may make its results otherwise.
/// @param tensor  below autograd
/// @param place   of its sizes, type and device
[[nodiscard]] at::Tensor with_place_for_like(const at::Tensor& tensor, const at::Tensor& place);

}  // namespace autopar
