#pragma once

#include <string>
#include <vector>

#include "launcher.hpp"
#include "signals.hpp"

namespace autopar::tool {

/// What a short command gave.
struct Answer {
  bool is_done = false;    ///< it has ended in time with status 0
  std::string output;      ///< its standard output, at most kMostAnswer bytes
  std::string complaints;  ///< its standard error, likewise

  friend bool operator==(const Answer&, const Answer&) = default;
};

inline constexpr std::size_t kMostAnswer = 1 << 16;
inline constexpr double kAnswerLimit = 10;  ///< seconds

/// Runs commands side by side, each for at most `limit` seconds. Those that are left then, or when one more signal asks
/// for the end, are killed. A command that cannot be started gives no answer.
[[nodiscard]] std::vector<Answer> answers_of(const std::vector<Command>& commands,
                                             const std::vector<std::string>& environment, Signals& signals,
                                             double limit = kAnswerLimit);

}  // namespace autopar::tool
