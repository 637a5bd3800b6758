#pragma once

#include <ATen/core/Tensor.h>

namespace autopar::autograd {

/// The same tensor, for operators of libtorch that allocate a result by `at::empty_like` and take no output argument.
/// For this tensor `at::empty_like` returns `place`.
///
///   at::empty_like(with_place_for_like(query, place)).data_ptr() == place.data_ptr()
///
/// The caller must check the operator's result: another version of libtorch may allocate it differently.
/// @param tensor  below autograd
/// @param place   has its sizes, type and device
[[nodiscard]] at::Tensor with_place_for_like(const at::Tensor& tensor, const at::Tensor& place);

}  // namespace autopar::autograd
