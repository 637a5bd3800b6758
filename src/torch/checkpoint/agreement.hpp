#pragma once

#include <functional>
#include <string>

#include <autopar/runtime/world.hpp>

namespace autopar::checkpoint {

/// What rank 0 says, on every rank. Collective.
[[nodiscard]] std::string told_by_rank_0(World& world, const std::string& text, const char* action);

/// Runs `work` on every rank, which must not communicate. Collective.
/// @throws CheckpointError on every rank where it threw on some: `subject` and what the first of them met
void all_or_none(World& world, const char* action, const std::string& subject, const std::function<void()>& work);

}  // namespace autopar::checkpoint
