#pragma once

#include <string>

#include <autopar/core/error.hpp>

/// What `work` is refused with; empty if it is not.
inline std::string refusal(const auto& work) {
  try {
    work();
  } catch (const autopar::Error& error) {
    return error.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
