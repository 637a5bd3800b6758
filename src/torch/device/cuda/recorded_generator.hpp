#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace autopar::devices {

/// See DeviceContext::recorded_generator.
[[nodiscard]] at::Generator generator_by_memory(const at::Tensor& seed);

}  // namespace autopar::devices
