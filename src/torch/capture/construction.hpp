#pragma once

#include <ATen/core/Tensor.h>

namespace autopar::detail {

/// Gives data to a phantom that a recorded construction made and nobody registered: a constant of the model.
/// False if the tensor comes from elsewhere.
[[nodiscard]] bool materialise_constant(const at::Tensor& phantom);

}  // namespace autopar::detail
