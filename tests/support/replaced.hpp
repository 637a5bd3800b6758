#pragma once

#include <string>

#include <catch_shim.hpp>

/// `text` with the first `from` as `to`. @pre it occurs
inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}
