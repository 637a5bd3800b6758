#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <autopar/core/units.hpp>

namespace autopar {

/// Where progress is shown.
struct ProgressScreen {
  std::function<void(std::string_view text)> show{};  ///< shows text at once; if empty, nothing is shown
  bool is_terminal = true;                            ///< whether a line can be overwritten
};

/// Standard error, whether or not it is a terminal.
[[nodiscard]] ProgressScreen standard_error();

/// Shows the progress of long work: after `patience` one line, `what: phase, seconds`. A terminal's line is updated and
/// removed at the end; elsewhere the line is written once. For work of one thread, which calls `now`.
class Progress {
 public:
  static constexpr Seconds kPatience{2};

  Progress(std::string what, ProgressScreen screen, Seconds patience = kPatience);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Begins a phase.
  void now(const std::string& phase);

 private:
  struct State;
  std::unique_ptr<State> state_;  ///< null if nothing is shown
};

}  // namespace autopar
