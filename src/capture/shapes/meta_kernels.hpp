#pragma once

namespace autopar {

/// Registers shape-only kernels for the common operators for which libtorch has none in C++ (relu, convolution,
/// embedding, batch norm, …). An operator that has one keeps it. Idempotent, thread-safe; capture calls it.
void install_meta_kernels();

}  // namespace autopar
