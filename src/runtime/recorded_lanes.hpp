#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>

namespace autopar::detail {

/// Tells how far recorded operations are from one word of memory for each queue that they run in. The device writes the
/// word before and after each operation: it counts begins and ends, so it is odd while an operation runs.
///
///   const auto mark = lanes.begin(stream, "sum over group 0", Rank::none());   // while recording: to be written
///   …
///   if (const auto waiting = lanes.longest_waiting(words, now)) …              // while it runs
class RecordedLanes {
 public:
  using Clock = std::chrono::steady_clock;

  /// What the device is to write.
  struct Mark {
    std::size_t word;
    std::uint32_t value;
  };
  /// @param queue  operations of one queue run one after the other
  /// @param peer   none: other members of a group
  [[nodiscard]] Mark begin(const void* queue, std::string action, Rank peer);
  /// @pre an operation of the queue has begun
  [[nodiscard]] Mark end(const void* queue) const;

  struct Waiting {
    std::string action;
    Rank peer;
    Seconds age;  ///< since it was first seen
  };
  /// The operation that began and has not ended for the longest time; nothing if there is none.
  /// @param words  as the device writes them
  [[nodiscard]] std::optional<Waiting> longest_waiting(std::span<const std::uint32_t> words, Clock::time_point now);
  /// The operations run again: ages count anew.
  void restart();

 private:
  struct Operation {
    std::string action;
    Rank peer;
  };
  struct Lane {
    std::size_t word;
    std::vector<Operation> operations;
    std::uint32_t seen = 0;
    Clock::time_point since{};
  };

  std::map<const void*, Lane> lanes_;
};

}  // namespace autopar::detail
