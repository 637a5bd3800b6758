#pragma once

namespace autopar::shapes {

/// Registers shape-only kernels for common operators that have none in libtorch's C++ code (relu, convolution,
/// embedding, batch norm, …). An operator that has one keeps it. Idempotent, thread-safe; capture calls it.
void install_meta_kernels();

}  // namespace autopar::shapes
