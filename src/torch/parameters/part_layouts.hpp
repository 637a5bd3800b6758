#pragma once

#include <string>
#include <vector>

#include <autopar/core/ids.hpp>

#include "torch/parameters/shard_slices.hpp"
#include "torch/parameters/state_registry.hpp"

namespace autopar::parameters {

// Descriptions of a rank's part of a parameter, as the end of a sentence that begins with the parameter's name.

/// "is held in shards (ZeRO 1): rank 1 has elements [12, 24) of 24".
/// @param elements  this rank's
[[nodiscard]] std::string describe_shard(const ManagedTensor& tensor, const ShardSlices& elements, int zero, Rank self);

/// "is held in slices: rank 1 has indices [6, 12) of dim 0, which has 12".
/// @pre the tensor is held in slices
[[nodiscard]] std::string describe_slice(const ManagedTensor& tensor, int shard, Rank self);

/// "has copies on ranks 0, 1"
[[nodiscard]] std::string describe_copies(const std::vector<Rank>& holders);

}  // namespace autopar::parameters
