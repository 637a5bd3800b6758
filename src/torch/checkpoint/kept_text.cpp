#include "torch/checkpoint/kept_text.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <autopar/core/error.hpp>
#include <autopar/core/printable.hpp>

namespace autopar::checkpoint {

namespace {

using detail::KeptKind;

constexpr std::array<std::pair<KeptKind, std::string_view>, 12> kKinds{{{KeptKind::kBool, "bool"},
                                                                        {KeptKind::kInteger, "integer"},
                                                                        {KeptKind::kFloat, "float"},
                                                                        {KeptKind::kDouble, "double"},
                                                                        {KeptKind::kBools, "bools"},
                                                                        {KeptKind::kIntegers, "integers"},
                                                                        {KeptKind::kFloats, "floats"},
                                                                        {KeptKind::kDoubles, "doubles"},
                                                                        {KeptKind::kString, "string"},
                                                                        {KeptKind::kTensor, "tensor"},
                                                                        {KeptKind::kArchive, "archive"},
                                                                        {KeptKind::kText, "text"}}};
constexpr std::string_view kPerRankMark = "per_rank";
constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Whether the bytes may be any, not the ASCII text of numbers.
bool is_binary(KeptKind kind) { return kind >= KeptKind::kString; }

std::string base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t three = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      three = three << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      text += i + k <= bytes.size() ? kDigits[three >> (18 - 6 * k) & 63] : '=';
    }
  }
  return text;
}

/// The value of each character; 64: it is no digit.
constexpr auto kValues = [] {
  std::array<std::uint8_t, 256> values{};
  values.fill(64);
  for (std::size_t i = 0; i < kDigits.size(); ++i)
    values[static_cast<unsigned char>(kDigits[i])] = static_cast<std::uint8_t>(i);
  return values;
}();

/// Takes what base64() makes and nothing else.
std::string bytes_in(std::string_view text) {
  const auto refuse = [] { throw CheckpointError("its value is no base64"); };
  if (text.size() % 4 != 0) refuse();
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (std::size_t i = 0; i < text.size(); i += 4) {
    std::uint32_t three = 0;
    for (std::size_t k = i; k < i + 4; ++k) {
      const std::uint32_t value = k < text.size() - padding ? kValues[static_cast<unsigned char>(text[k])] : 0;
      if (value == 64) refuse();
      three = three << 6 | value;
    }
    for (const int shift : {16, 8, 0}) bytes += static_cast<char>(three >> shift & 255);
  }
  for (std::size_t i = 0; i < padding; ++i) {
    if (bytes.back() != '\0') refuse();
    bytes.pop_back();
  }
  return bytes;
}

/// Takes what numbers and lists of them may consist of.
std::string numbers_in(std::string_view text) {
  constexpr std::string_view kAllowed = "0123456789abcdefghijklmnopqrstuvwxyz+-.,";
  if (text.find_first_not_of(kAllowed) != std::string_view::npos) detail::refuse_kept(text);
  return std::string(text);
}

KeptBytes kept_bytes_in(std::string_view text) {
  const auto colon = text.find(':');
  for (const auto& [kind, name] : kKinds) {
    if (colon == std::string_view::npos || text.substr(0, colon) != name) continue;
    const auto value = text.substr(colon + 1);
    KeptBytes kept{kind, is_binary(kind) ? bytes_in(value) : numbers_in(value)};
    detail::require_kept_size(kept.bytes.size());
    return kept;
  }
  throw CheckpointError("its value is of no known kind: '" +
                        std::string(text.substr(0, std::min(colon, std::size_t{20}))) + "'");
}

}  // namespace

std::string_view kind_name(KeptKind kind) { return kKinds.at(static_cast<std::size_t>(kind)).second; }

bool is_number(KeptKind kind) { return kind <= KeptKind::kDouble; }

std::string why_no_kept_name(std::string_view name) {
  if (name.empty()) return "it is empty";
  while (!name.empty()) {
    const auto character = autopar::detail::utf8_character(name);
    if (character.bytes == 0) return "it is no UTF-8";
    if (character.code == '\t' || character.code == '\n' || autopar::detail::is_control(character.code)) {
      return "it has control characters";
    }
    name.remove_prefix(character.bytes);
  }
  return {};
}

std::string to_text(const KeptValue& value) {
  std::string text;
  if (value.scope == KeptScope::kPerRank) text = kPerRankMark;
  for (const auto& [kind, bytes] : value.of_ranks) {
    if (!text.empty()) text += ' ';
    text += std::string(kind_name(kind)) + ':' + (is_binary(kind) ? base64(bytes) : bytes);
  }
  return text;
}

KeptValue kept_value_in(std::string_view text) {
  KeptValue value;
  if (!text.starts_with(kPerRankMark)) {
    value.of_ranks.push_back(kept_bytes_in(text));
    return value;
  }
  value.scope = KeptScope::kPerRank;
  text.remove_prefix(kPerRankMark.size());
  while (text.starts_with(' ')) {
    text.remove_prefix(1);
    const auto end = std::min(text.find(' '), text.size());
    value.of_ranks.push_back(kept_bytes_in(text.substr(0, end)));
    text.remove_prefix(end);
  }
  if (value.of_ranks.empty() || !text.empty()) throw CheckpointError("its values of ranks are damaged");
  return value;
}

}  // namespace autopar::checkpoint
