#include "torch/checkpoint/agreement.hpp"

#include <exception>

#include <autopar/core/error.hpp>

#include "torch/ranks/collective_try.hpp"

namespace autopar::checkpoint {

std::string told_by_rank_0(World& world, const std::string& text, const char* action) {
  return ranks::text_of(world.broadcast(ranks::blob_of(text), Rank(0), action));
}

void all_or_none(World& world, const char* action, const std::string& subject, const std::function<void()>& work) {
  std::string error;
  try {
    work();
  } catch (const std::exception& met) {
    error = *met.what() == '\0' ? "an exception without a message" : met.what();
  }
  const auto errors = world.all_gather(ranks::blob_of(error), action);
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    if (errors[rank].empty()) continue;
    const auto who = rank == 0 ? "" : "rank " + std::to_string(rank) + ": ";
    throw CheckpointError(subject + ": " + who + ranks::text_of(errors[rank]));
  }
}

}  // namespace autopar::checkpoint
