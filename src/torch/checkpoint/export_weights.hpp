#pragma once

#include <exception>
#include <filesystem>
#include <optional>
#include <vector>

#include <c10/core/ScalarType.h>

#include <autopar/runtime/world.hpp>

#include "torch/checkpoint/checkpoint.hpp"

namespace autopar::checkpoint {

/// That weights cannot be cast to this type, or null.
[[nodiscard]] std::exception_ptr no_type_of_weights(std::optional<c10::ScalarType> dtype);

/// Writes all tensors to one safetensors file, by their names in the module. Rank 0 writes, one tensor at a time.
/// Collective.
/// @param dtype  of floating-point tensors in the file; empty: their own
/// @throws CheckpointError, on every rank, if rank 0 cannot write; the file is then as it was
void write_weights(World& world, const std::filesystem::path& file, const std::vector<ShardedTensorMetadata>& tensors,
                   std::optional<c10::ScalarType> dtype);

}  // namespace autopar::checkpoint
