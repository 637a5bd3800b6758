#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>

namespace autopar::detail {

/// Tells how far recorded operations are, which run one after the other, from one word of memory. The device writes the
/// word before and after each operation: it counts begins and ends, so it is odd while an operation runs.
///
///   const auto value = progress.begin("sum over group 0", Rank::none());   // while recording: to be written
///   …
///   if (const auto waiting = progress.waiting(word, now)) …                // while it runs
class RecordedProgress {
 public:
  using Clock = std::chrono::steady_clock;

  /// @param peer  none: other members of a group
  /// @return what the device is to write right before the operation
  [[nodiscard]] std::uint32_t begin(std::string action, Rank peer);
  /// What it is to write right after it. @pre an operation has begun
  [[nodiscard]] std::uint32_t end() const { return static_cast<std::uint32_t>(2 * operations_.size()); }

  struct Waiting {
    std::string action;
    Rank peer;
    Seconds age;  ///< since it was first seen
  };
  /// The operation that has begun and not ended; nothing if there is none. @param word  as the device writes it
  [[nodiscard]] std::optional<Waiting> waiting(std::uint32_t word, Clock::time_point now);
  /// The operations run again: ages count anew.
  void restart() { since_ = {}; }

 private:
  struct Operation {
    std::string action;
    Rank peer;
  };

  std::vector<Operation> operations_;
  std::uint32_t seen_ = 0;
  Clock::time_point since_{};
};

}  // namespace autopar::detail
