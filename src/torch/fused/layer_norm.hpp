#pragma once

#include <cstdint>

#include <c10/core/ScalarType.h>

namespace autopar::fused {

/// Whether on GPUs kernels of the library's own make a sum and its layer norm (`kAddLayerNorm`) of such rows: of
/// whole packs, and not too many. Else libtorch's operators do, and keep a mask of what is dropped.
[[nodiscard]] bool has_layer_norm_kernels(c10::ScalarType type, std::int64_t columns);

}  // namespace autopar::fused
