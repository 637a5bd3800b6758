#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/core/ids.hpp>
#include <autopar/runtime/log.hpp>
#include <autopar/runtime/world.hpp>

namespace autopar::detail {

/// Why the world cannot go on.
struct Failure {
  Rank rank;           ///< who failed, or who reported the stall
  std::string action;  ///< what it was doing
  std::string message;
  int code = 0;  ///< of the communication library, 0 if none
};

/// How long to wait, and the setting that says so.
struct Limits : StallLimits {
  std::string_view setting = "stall_timeout";
};

/// What one rank knows about the state of all: has somebody failed, who has left. Thread-safe.
class Health {
 public:
  /// @param start  what counts until `note_started` or `set_limits`, if anything else does
  Health(Rank self, int size, StallLimits limits, Logger logger, std::optional<StallLimits> start = {});

  [[nodiscard]] Rank self() const { return self_; }
  [[nodiscard]] int size() const { return static_cast<int>(left_.size()); }
  [[nodiscard]] const Logger& logger() const { return logger_; }

  [[nodiscard]] Limits limits() const;
  void set_limits(StallLimits limits);
  /// All ranks have made their first call.
  void note_started();

  /// Checks as below and keeps the action's name, for whoever has to tell what this rank was doing.
  void begin(std::string_view action);
  /// The latest action that began; empty if none has.
  [[nodiscard]] std::string action() const;

  /// How `report` reaches the other ranks; empty once they can no longer be reached.
  void set_announcer(std::function<void(const Failure&)> announcer);

  /// Notes a failure that was heard of. Only the first one counts; of others it is noted whether a lower rank says what
  /// this one has reported of itself.
  bool note(Failure failure) noexcept;
  /// Notes a failure that this rank is the first to see, and tells the others.
  void report(const Failure& failure) noexcept;
  [[nodiscard]] bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  [[nodiscard]] Failure failure() const;
  /// Whether a lower rank has failed in the same action with the same words as this one, which then need not say it
  /// again. Waits so long for such a rank to tell.
  [[nodiscard]] bool is_said_elsewhere(std::chrono::milliseconds patience) const noexcept;
  /// Throws TransportError if any rank failed. `action` is what this rank was about to do or was waiting for.
  void check(std::string_view action) const;

  void note_left(Rank rank) noexcept;
  [[nodiscard]] bool has_left(Rank rank) const noexcept;
  [[nodiscard]] bool all_others_left() const noexcept;

  /// So long this rank has waited for others once more.
  void add_wait(std::chrono::nanoseconds time) noexcept { waited_.fetch_add(time.count(), std::memory_order_relaxed); }
  [[nodiscard]] Seconds waited() const noexcept {
    return Seconds(1e-9 * static_cast<double>(waited_.load(std::memory_order_relaxed)));
  }

 private:
  const Rank self_;
  const Logger logger_;
  std::atomic<bool> failed_{false};
  std::atomic<std::int64_t> waited_{0};  ///< ns
  std::vector<std::atomic<bool>> left_;

  mutable std::mutex mutex_;
  StallLimits limits_;
  std::optional<StallLimits> start_;
  std::string action_;
  Failure failure_;
  bool is_said_elsewhere_ = false;
  mutable std::condition_variable said_elsewhere_;
  std::function<void(const Failure&)> announcer_;
};

}  // namespace autopar::detail
