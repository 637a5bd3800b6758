#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace autopar::testing::op_laws {

using Tensors = std::vector<at::Tensor>;

/// "[6, 3] Double".
[[nodiscard]] std::string form_of(const at::Tensor& tensor);

/// Description of the difference: sizes, or the position of the largest difference between numbers. Numbers differ if
/// they are more than 1e-12 * (1 + magnitude) apart. Empty text if nothing differs. NaN equals NaN.
[[nodiscard]] std::string difference(const at::Tensor& given, const at::Tensor& wanted);

/// Numbers between 0.5 and 1.5 of the same forms, the same at each call; undefined for results without a gradient.
[[nodiscard]] Tensors cotangents_of(const Tensors& results);

/// Gradients of the sum of results times cotangents; zeros for arguments without one.
[[nodiscard]] Tensors gradients_of(const Tensors& results, const Tensors& cotangents, const Tensors& arguments);

}  // namespace autopar::testing::op_laws
