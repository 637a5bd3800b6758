#pragma once

#include <functional>
#include <string>

#include <autopar/runtime/world.hpp>

namespace autopar::checkpoint {

/// Rank 0's text, on every rank. Collective.
[[nodiscard]] std::string told_by_rank_0(World& world, const std::string& text, const char* action);

/// Runs `work`, which must not communicate, on every rank. Collective.
/// @throws CheckpointError, on every rank, if it threw on some: `subject` and the error of the first of them
void all_or_none(World& world, const char* action, const std::string& subject, const std::function<void()>& work);

}  // namespace autopar::checkpoint
