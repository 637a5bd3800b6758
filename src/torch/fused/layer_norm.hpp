#pragma once

#include <cstdint>

#include <c10/core/ScalarType.h>

namespace autopar::fused {

/// Whether the library's kernels compute `kAddLayerNorm` on GPUs for rows of this length. Rows must be whole packs, and
/// not too long. Otherwise libtorch's operators run, and save a dropout mask.
[[nodiscard]] bool has_layer_norm_kernels(c10::ScalarType type, std::int64_t columns);

}  // namespace autopar::fused
