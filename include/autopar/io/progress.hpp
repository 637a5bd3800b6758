#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <autopar/core/units.hpp>

namespace autopar {

/// Where progress is shown.
struct ProgressScreen {
  std::function<void(std::string_view text)> show{};  ///< takes it at once; none: nobody is told
  bool is_terminal = true;                            ///< a line can be written over
};

/// Standard error, whether it is a terminal or not.
[[nodiscard]] ProgressScreen standard_error();

/// Says what work is done that takes long: after `patience` one line, `what: phase, seconds`. On a terminal it is
/// written over with the latest and removed at the end; elsewhere it is written once and stays. For work of one thread,
/// to which it is told by `now`.
class Progress {
 public:
  static constexpr Seconds kPatience{2};

  Progress(std::string what, ProgressScreen screen, Seconds patience = kPatience);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// What begins now.
  void now(const std::string& phase);

 private:
  struct State;
  std::unique_ptr<State> state_;  ///< null: nobody is told
};

}  // namespace autopar
