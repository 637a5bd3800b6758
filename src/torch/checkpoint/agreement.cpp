#include "torch/checkpoint/agreement.hpp"

#include "torch/ranks/collective_try.hpp"

namespace autopar::checkpoint {

std::string told_by_rank_0(World& world, const std::string& text, const char* action) {
  return ranks::text_of(world.broadcast(ranks::blob_of(text), Rank(0), action));
}

void all_or_none(World& world, const char* action, const std::string& subject, const std::function<void()>& work) {
  FirstError error;
  error.attempt(work);
  const auto errors = world.all_gather(ranks::blob_of(error.text()), action);
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    if (errors[rank].empty()) continue;
    const auto who = rank == 0 ? "" : "rank " + std::to_string(rank) + ": ";
    throw CheckpointError(subject + ": " + who + ranks::text_of(errors[rank]));
  }
}

}  // namespace autopar::checkpoint
