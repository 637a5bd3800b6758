#pragma once

#include <cstdio>
#include <string>

namespace branching {

/// A number as JSON that reads back the same.
inline std::string precise(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

}  // namespace branching
