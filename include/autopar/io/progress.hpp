#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <autopar/core/units.hpp>

namespace autopar {

/// Takes what is to be shown, at once.
using ProgressScreen = std::function<void(std::string_view text)>;

/// Standard error, if it is a terminal; otherwise nothing, so that files and pipes get no such lines.
[[nodiscard]] ProgressScreen terminal();

/// Says what work is done that takes long: after `patience` one line, `what: phase, seconds`, which is written over
/// with the latest and removed at the end. For work of one thread, to which it is told by `now`.
class Progress {
 public:
  static constexpr Seconds kPatience{2};

  /// @param screen  nothing: nobody is told
  Progress(std::string what, ProgressScreen screen, Seconds patience = kPatience);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// What begins now.
  void now(const std::string& phase);

 private:
  struct State;
  std::unique_ptr<State> state_;  ///< null: there is no screen
};

}  // namespace autopar
