#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace autopar::testing::op_laws {

using Tensors = std::vector<at::Tensor>;

/// "[6, 3] Double".
[[nodiscard]] std::string form_of(const at::Tensor& tensor);

/// Sizes that differ, or the place where numbers differ most, if by more than 1e-12 of one plus their size; empty text
/// if they do not. NaN equals NaN.
[[nodiscard]] std::string difference(const at::Tensor& given, const at::Tensor& wanted);

/// Numbers between 0.5 and 1.5 of the same forms, the same at each call; undefined for what has no gradient.
[[nodiscard]] Tensors cotangents_of(const Tensors& results);

/// Of the sum of results times cotangents; zeros where there is none.
[[nodiscard]] Tensors gradients_of(const Tensors& results, const Tensors& cotangents, const Tensors& arguments);

}  // namespace autopar::testing::op_laws
