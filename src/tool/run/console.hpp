#pragma once

#include <string>

namespace autopar::tool {

/// Where a run's output goes, not owned.
struct Console {
  int out = 1, err = 2;

  /// A line "autopar run: …" on the error stream. @param text  one line, escaped
  void say(const std::string& text) const;
};

}  // namespace autopar::tool
