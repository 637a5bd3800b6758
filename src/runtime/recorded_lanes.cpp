#include "recorded_lanes.hpp"

#include <utility>

namespace autopar::detail {

RecordedLanes::Mark RecordedLanes::begin(const void* queue, std::string action, Rank peer) {
  auto& lane = lanes_.try_emplace(queue, Lane{lanes_.size(), {}}).first->second;
  lane.operations.push_back({std::move(action), peer});
  return {lane.word, static_cast<std::uint32_t>(2 * lane.operations.size() - 1)};
}

RecordedLanes::Mark RecordedLanes::end(const void* queue) const {
  const auto& lane = lanes_.at(queue);
  return {lane.word, static_cast<std::uint32_t>(2 * lane.operations.size())};
}

std::optional<RecordedLanes::Waiting> RecordedLanes::longest_waiting(std::span<const std::uint32_t> words,
                                                                     Clock::time_point now) {
  std::optional<Waiting> longest;
  for (auto& [queue, lane] : lanes_) {
    const auto value = *static_cast<const volatile std::uint32_t*>(&words[lane.word]);
    const bool is_new = std::exchange(lane.seen, value) != value || lane.since == Clock::time_point{};
    if (is_new) lane.since = now;
    const std::size_t index = value / 2;
    if (value % 2 == 0 || index >= lane.operations.size()) continue;
    const Seconds age{std::chrono::duration<double>(now - lane.since).count()};
    const auto& operation = lane.operations[index];
    if (!longest || longest->age < age) longest = Waiting{operation.action, operation.peer, age};
  }
  return longest;
}

void RecordedLanes::restart() {
  for (auto& [queue, lane] : lanes_) lane.since = {};
}

}  // namespace autopar::detail
