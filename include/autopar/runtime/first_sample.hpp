#pragma once

#include <cstdint>

#include <autopar/runtime/world.hpp>

namespace autopar {

/// How many samples the ranks before this one have: where this rank's `samples` begin in the global batch, which is the
/// concatenation of the ranks' batches in rank order. Integers that count within the rank's batch count in the global
/// batch once it is added. Collective; each rank gives its own number, 0 where it has none.
/// @throws InvalidArgument on every rank if a number is negative
/// @cost one all-gather of 8 bytes
[[nodiscard]] std::int64_t first_sample(World& world, std::int64_t samples);

}  // namespace autopar
