#pragma once

#include <string>

namespace autopar::detail {

/// Hears of the end of its process: by exit, or by std::terminate, which an exception that nobody catches comes to.
///
/// A process ends once, so the handlers are the process's own: installed with the first listener, they stay, do nothing
/// while nobody listens, and go on to what was installed before. Children that were forked do not count.
class ProcessEndListener {
 public:
  ProcessEndListener() = default;
  ProcessEndListener(const ProcessEndListener&) = delete;
  ProcessEndListener& operator=(const ProcessEndListener&) = delete;
  virtual ~ProcessEndListener() { stop_listening(); }

  void listen_for_process_end();
  void stop_listening() noexcept;

  /// The program called exit. When all have heard, the process ends, with 1 where `status` is 0.
  virtual void process_exits(int status) noexcept = 0;
  /// std::terminate was called, by an exception with this text. When all have heard, the process aborts.
  /// @return whether another process says so, and this one is to print nothing
  virtual bool process_terminates(const std::string& message) noexcept = 0;
};

}  // namespace autopar::detail
