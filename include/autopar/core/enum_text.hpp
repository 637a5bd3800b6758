#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <autopar/core/error.hpp>

namespace autopar {

/// A value of an enum and its text in options, plans and files.
template <class Enum>
struct EnumText {
  Enum value;
  std::string_view text;
};

/// All values of an enum with their texts. An enum that users write as text specialises it beside its definition:
/// printing and parsing read this table alone.
template <class Enum>
inline constexpr std::array<EnumText<Enum>, 0> kEnumTexts{};

/// An enum with such a table.
template <class T>
concept TextEnum = std::is_enum_v<T> && !kEnumTexts<T>.empty();

/// @throws InvalidArgument if the table has no such value
template <TextEnum Enum>
[[nodiscard]] constexpr std::string_view to_string(Enum value) {
  const auto row = std::ranges::find(kEnumTexts<Enum>, value, &EnumText<Enum>::value);
  if (row == kEnumTexts<Enum>.end()) throw InvalidArgument("an enum has a value without a name");
  return row->text;
}

/// Likewise, for texts that are put together.
template <TextEnum Enum>
[[nodiscard]] std::string name_of(Enum value) {
  return std::string(to_string(value));
}

/// The value of a text; empty if there is none.
template <TextEnum Enum>
[[nodiscard]] constexpr std::optional<Enum> enum_named(std::string_view text) {
  const auto row = std::ranges::find(kEnumTexts<Enum>, text, &EnumText<Enum>::text);
  return row == kEnumTexts<Enum>.end() ? std::nullopt : std::optional(row->value);
}

/// All texts, in the table's order.
template <TextEnum Enum>
[[nodiscard]] std::vector<std::string> enum_texts() {
  std::vector<std::string> texts;
  for (const auto& row : kEnumTexts<Enum>) texts.emplace_back(row.text);
  return texts;
}

}  // namespace autopar
