#pragma once

#include <concepts>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <autopar/core/enum_text.hpp>
#include <autopar/plan/recompute.hpp>

namespace autopar {

/// An option that the planner chooses if it has no value; its text is then "auto".
template <class T>
concept TextChoice = requires {
  typename T::value_type;
}
&&TextEnum<typename T::value_type>&& std::same_as<T, std::optional<typename T::value_type>>;

/// An option that is a word in files, in the environment and on command lines.
template <class T>
concept WordOption = TextEnum<T> || TextChoice<T>;

/// The words of an option's type.
template <WordOption T>
[[nodiscard]] std::vector<std::string> option_words() {
  if constexpr (TextChoice<T>) {
    auto words = enum_texts<typename T::value_type>();
    words.insert(words.begin(), "auto");
    return words;
  } else {
    return enum_texts<T>();
  }
}

/// The value of a word; empty if it is none of `option_words`.
template <WordOption T>
[[nodiscard]] std::optional<T> option_named(std::string_view word) {
  if constexpr (TextChoice<T>) {
    std::optional<T> out;
    const auto value = enum_named<typename T::value_type>(word);
    if (value) out.emplace(*value);
    if (word == "auto") out.emplace(std::nullopt);
    return out;
  } else {
    return enum_named<T>(word);
  }
}

/// What to say of a word that is none of them.
template <WordOption T>
[[nodiscard]] std::string not_an_option(std::string_view word) {
  std::string known;
  for (const auto& name : option_words<T>()) known += (known.empty() ? "" : " | ") + name;
  return "'" + std::string(word) + "' is not one of " + known;
}

/// The word of a value: what `option_named` reads.
template <WordOption T>
[[nodiscard]] std::string option_text(const T& value) {
  if constexpr (TextChoice<T>) {
    return value ? std::string(to_string(*value)) : "auto";
  } else {
    return std::string(to_string(value));
  }
}
[[nodiscard]] inline std::string option_text(const RecomputeOption& value) { return value.text(); }

}  // namespace autopar
