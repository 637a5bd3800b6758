#pragma once

#include <chrono>
#include <functional>
#include <utility>

#include <autopar/schedule/action.hpp>

namespace autopar::detail {

/// How far a run of a program has come, and what it is busy with: for the order of the program, errors and the trace.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;
  using Trace = std::function<void(const Action& action, Clock::time_point start, Clock::time_point end)>;

  /// @param trace  see ExecutorHooks; must outlive it
  explicit Progress(const Trace& trace) : trace_(trace) {}

  void reach(const Action& action) { reached_ = busy_with_ = &action; }
  /// The action of the program that is executed now; null before the first.
  [[nodiscard]] const Action* reached() const { return reached_; }

  /// An error from now on is this action's. @return whose it was
  const Action* turn_to(const Action* action) { return std::exchange(busy_with_, action); }
  [[nodiscard]] const Action* busy_with() const { return busy_with_; }

  /// No clock is read if nobody traces.
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
