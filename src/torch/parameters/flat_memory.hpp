#pragma once

#include <cstddef>

#include <ATen/core/Tensor.h>

namespace autopar::parameters {

// A storage that has memory only at times, and is always the same one: tensors that refer to it find the data again.

[[nodiscard]] bool has_memory(const at::Tensor& flat);
/// @pre it has none
void give_memory(const at::Tensor& flat, std::size_t bytes);
void drop_memory(const at::Tensor& flat);

}  // namespace autopar::parameters
