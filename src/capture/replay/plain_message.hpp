#pragma once

#include <exception>
#include <string>

#include <c10/util/Exception.h>

namespace autopar::replay {

/// Message of an error without libtorch's stack frames: hundreds of lines that are useless to someone who trains a
/// model.
[[nodiscard]] inline std::string plain_message(const std::exception& error) {
  const auto* of_libtorch = dynamic_cast<const c10::Error*>(&error);
  std::string text = of_libtorch != nullptr ? of_libtorch->what_without_backtrace() : error.what();
  text.erase(text.find_last_not_of(" \n") + 1);
  return text;
}

/// libtorch's stack frames of an error, or of its cause; empty if neither is a libtorch error.
[[nodiscard]] inline std::string frames_of(const std::exception& error) {
  if (dynamic_cast<const c10::Error*>(&error) != nullptr) return error.what();
  try {
    std::rethrow_if_nested(error);
  } catch (const std::exception& cause) {
    return frames_of(cause);
  }
  return {};
}

}  // namespace autopar::replay
