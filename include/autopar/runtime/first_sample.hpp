#pragma once

#include <cstdint>

#include <autopar/runtime/world.hpp>

namespace autopar {

/// The number of samples on the ranks before this one. It is the index of this rank's first sample in the global batch,
/// which concatenates the ranks' batches in rank order. Adding it to an index into the rank's batch gives the index
/// into the global batch. Collective; each rank passes its own number of samples, which may be 0.
/// @throws InvalidArgument, on every rank, if a number is negative
/// @cost one all-gather of 8 bytes for each rank
[[nodiscard]] std::int64_t first_sample(World& world, std::int64_t samples);

}  // namespace autopar
