#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace autopar::tool {

/// How far restarts may go.
struct StartLimits {
  int ranks = 1;
  int min_ranks = 1;
  int max_restarts = 10;
};

/// How a start ended.
struct StartEnd {
  int status = 0;                    ///< the program's, 128 + the signal if it was killed
  std::optional<std::int64_t> step;  ///< the last that it reached; none: it reached none
  bool is_asked = false;             ///< a signal to the supervisor, or the program's own answer to one
};

/// What a run does after the end of a start.
enum class NextStart : std::uint8_t {
  kRestart,
  kFinished,     ///< status 0
  kInterrupted,  ///< a signal has asked for the end
  kSameFault,    ///< the same step twice
  kNoneLeft,     ///< as many restarts as are allowed
  kTooFewSlots,  ///< fewer than the fewest ranks
  kNotEnded,     ///< processes of the last start are left and cannot be ended
};

/// Counts the starts of a run and decides on the next one; knows nothing of processes.
class Starts {
 public:
  /// @pre 1 <= min_ranks <= ranks, max_restarts >= 0
  explicit Starts(StartLimits limits) : limits_(limits), ranks_(limits.ranks) {}

  [[nodiscard]] int number() const { return number_; }  ///< of this start, from 1
  [[nodiscard]] int most() const { return limits_.max_restarts + 1; }
  [[nodiscard]] int ranks() const { return ranks_; }  ///< of this start

  /// Whether the run goes on after this start. If kRestart, `place` is next.
  [[nodiscard]] NextStart after(const StartEnd& end);
  /// The next start on as many slots as there are: kRestart, or kTooFewSlots. Also before the first start.
  [[nodiscard]] NextStart place(int slots);
  /// The next start has begun, with the ranks of `place`.
  void begin() { ++number_; }

 private:
  StartLimits limits_;
  int number_ = 0;
  int ranks_;
  bool has_failed_ = false;
  std::optional<std::int64_t> failed_at_;
};

}  // namespace autopar::tool
