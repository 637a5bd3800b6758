#pragma once

#include <cstddef>
#include <string>

namespace autopar::test {

// Where members are looked for one after the other, as an ordered_json does, so many take minutes.
inline constexpr std::size_t kMany = 300'000;

/// A JSON object of so many members, behind `head` and between them with commas.
inline std::string object_of(std::size_t members, const std::string& head, const std::string& value) {
  std::string text = "{" + head;
  for (std::size_t i = 0; i < members; ++i) text += ",\"k" + std::to_string(i) + "\":" + value;
  return text + "}";
}

}  // namespace autopar::test
