#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace autopar {

namespace detail {

/// A UTF-8 character and its length in bytes; 0 bytes for an invalid sequence.
struct Utf8Character {
  std::uint32_t code = 0;
  std::size_t bytes = 0;
};

[[nodiscard]] constexpr Utf8Character utf8_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i])); };
  const auto first = byte(0);
  if (first < 0x80) return {first, 1};
  const std::size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || bytes > text.size()) return {};
  std::uint32_t code = first & (0xffu >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  return code < kLeast[bytes] ? Utf8Character{} : Utf8Character{code, bytes};
}

/// Whether a terminal interprets the character instead of showing it: C0 and C1 controls, and marks that change the
/// direction of text. Tabs and line breaks are not included.
[[nodiscard]] constexpr bool is_control(std::uint32_t code) {
  if (code < 0x20) return code != '\t' && code != '\n';
  return (code >= 0x7f && code < 0xa0) || code == 0x200e || code == 0x200f || (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);
}

}  // namespace detail

namespace detail {

/// @param keeps_layout  whether tabs and line breaks remain unescaped
[[nodiscard]] inline std::string escaped(std::string_view text, bool keeps_layout) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto character = utf8_character(text);
    const std::size_t bytes = character.bytes == 0 ? 1 : character.bytes;
    const std::uint32_t code = character.bytes == 0 ? static_cast<unsigned char>(text.front()) : character.code;
    const bool is_layout = code == '\t' || code == '\n';
    if (is_layout && !keeps_layout) {
      out += code == '\t' ? "\\t" : "\\n";
    } else if (character.bytes > 0 && !is_control(code)) {
      out += text.substr(0, bytes);
    } else {
      out += "\\u";
      for (int shift = 12; shift >= 0; shift -= 4) out += kDigits[(code >> shift) & 15];
    }
    text.remove_prefix(bytes);
  }
  return out;
}

}  // namespace detail

/// Escapes what a terminal would interpret: control characters become "\u001b", and so do bytes that are not UTF-8. In
/// JSON these are escapes of the same characters. Names in messages may come from untrusted files. Tabs and line breaks
/// remain: use it for formatted text whose names went through `printable_line`.
[[nodiscard]] inline std::string printable(std::string_view text) { return detail::escaped(text, true); }

/// As `printable`, and tabs and line breaks become "\t" and "\n". For one line, such as a name or a message: no name
/// can then start a new line.
[[nodiscard]] inline std::string printable_line(std::string_view text) { return detail::escaped(text, false); }

}  // namespace autopar
