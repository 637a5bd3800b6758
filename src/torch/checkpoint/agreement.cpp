#include "torch/checkpoint/agreement.hpp"

#include <exception>
#include <span>

#include <autopar/core/error.hpp>

namespace autopar::checkpoint {

namespace {

Blob bytes_of_text(const std::string& text) {
  const auto raw = std::as_bytes(std::span(text));
  return {raw.begin(), raw.end()};
}

std::string text_of_bytes(const Blob& blob) { return {reinterpret_cast<const char*>(blob.data()), blob.size()}; }

}  // namespace

std::string told_by_rank_0(World& world, const std::string& text, const char* action) {
  return text_of_bytes(world.broadcast(bytes_of_text(text), Rank(0), action));
}

void all_or_none(World& world, const char* action, const std::string& subject, const std::function<void()>& work) {
  std::string error;
  try {
    work();
  } catch (const std::exception& met) {
    error = *met.what() == '\0' ? "an exception without a message" : met.what();
  }
  const auto errors = world.all_gather(bytes_of_text(error), action);
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    if (errors[rank].empty()) continue;
    const auto who = rank == 0 ? "" : "rank " + std::to_string(rank) + ": ";
    throw CheckpointError(subject + ": " + who + text_of_bytes(errors[rank]));
  }
}

}  // namespace autopar::checkpoint
