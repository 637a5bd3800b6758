#pragma once

#include <memory>

#include <c10/core/Device.h>

#include <autopar/io/cache_folder.hpp>

#include "kernels/kernel_source.hpp"

namespace autopar::kernels {

/// See DeviceContext::compiles_kernels; false if NVRTC is missing or does not support the device.
[[nodiscard]] bool has_compiler(c10::DeviceIndex device);
/// 90 of compute capability 9.0; 0 without CUDA.
[[nodiscard]] int generation_of(c10::DeviceIndex device);
/// See DeviceContext::has_kernels.
[[nodiscard]] bool has_compiled(const KernelSource& source, c10::DeviceIndex device);
/// See DeviceContext::launch.
[[nodiscard]] bool launch_compiled(const KernelSource& source, const char* function, const LaunchShape& shape,
                                   void** arguments, c10::DeviceIndex device);
/// See DeviceContext::keep_kernels_in.
void keep_compiled_in(const std::shared_ptr<CacheFolder>& folder);

}  // namespace autopar::kernels
