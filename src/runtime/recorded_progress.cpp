#include "recorded_progress.hpp"

#include <cstddef>
#include <utility>

namespace autopar::detail {

std::uint32_t RecordedProgress::begin(std::string action, Rank peer) {
  operations_.push_back({std::move(action), peer});
  return end() - 1;
}

std::optional<RecordedProgress::Waiting> RecordedProgress::waiting(std::uint32_t word, Clock::time_point now) {
  const bool is_new = std::exchange(seen_, word) != word || since_ == Clock::time_point{};
  if (is_new) since_ = now;
  const std::size_t index = word / 2;
  if (word % 2 == 0 || index >= operations_.size()) return std::nullopt;
  const auto& [action, peer] = operations_[index];
  return Waiting{action, peer, Seconds{std::chrono::duration<double>(now - since_).count()}};
}

}  // namespace autopar::detail
