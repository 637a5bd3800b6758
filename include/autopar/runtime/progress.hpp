#pragma once

#include <chrono>
#include <functional>
#include <utility>

#include <autopar/schedule/action.hpp>

namespace autopar::detail {

/// The position of a run in its program and the action that it works on: for ordering, errors and the trace.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;
  using Trace = std::function<void(const Action& action, Clock::time_point start, Clock::time_point end)>;

  /// @param trace  see ExecutorHooks; must outlive the object
  explicit Progress(const Trace& trace) : trace_(trace) {}

  void reach(const Action& action) { reached_ = busy_with_ = &action; }
  /// The program's current action; null before the first.
  [[nodiscard]] const Action* reached() const { return reached_; }

  /// Attributes errors from now on to this action.
  /// @return the action that errors were attributed to before
  const Action* turn_to(const Action* action) { return std::exchange(busy_with_, action); }
  [[nodiscard]] const Action* busy_with() const { return busy_with_; }

  /// Reads the clock only if there is a trace.
  [[nodiscard]] Clock::time_point now() const { return trace_ ? Clock::now() : Clock::time_point{}; }
  void ended(const Action& action, Clock::time_point start) const {
    if (trace_) trace_(action, start, Clock::now());
  }

 private:
  const Trace& trace_;
  const Action* reached_ = nullptr;
  const Action* busy_with_ = nullptr;
};

}  // namespace autopar::detail
