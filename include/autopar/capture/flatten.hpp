#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/capture/detail/fields.hpp>
#include <autopar/core/assert.hpp>

namespace autopar {

/// Arguments or results as a flat list of tensors, and a text of their structure. Equal structures with equal constants
/// have equal texts.
struct Flattened {
  std::vector<at::Tensor> tensors;  ///< in declaration order; undefined where the caller's tensor is
  std::string structure;            ///< containers, their lengths, present optionals, values of constants
  std::string beside{};  ///< bytes of the other state that the callee holds. Local to a rank, only compared with
                         ///< earlier calls
};

namespace detail {

template <class T, template <class...> class Template>
inline constexpr bool kIsInstance = false;
template <template <class...> class Template, class... Args>
inline constexpr bool kIsInstance<Template<Args...>, Template> = true;

template <class T>
inline constexpr bool kIsStdArray = false;
template <class T, std::size_t N>
inline constexpr bool kIsStdArray<std::array<T, N>> = true;

/// Values that become part of the captured program, as they were at the call.
template <class T>
concept Constant = std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, std::string> ||
    std::is_same_v<T, std::string_view> || std::is_same_v<T, const char*> || std::is_same_v<T, std::nullopt_t> ||
    std::is_same_v<T, std::monostate>;

template <class T>
constexpr bool is_flattenable();

template <class Tuple>
inline constexpr bool kAllFlattenable = false;
template <template <class...> class Tuple, class... Fields>
inline constexpr bool kAllFlattenable<Tuple<Fields...>> = (is_flattenable<std::remove_cvref_t<Fields>>() && ...);

template <class T>
constexpr bool is_flattenable() {
  if constexpr (std::is_same_v<T, at::Tensor> || Constant<T>) {
    return true;
  } else if constexpr (kIsInstance<T, std::tuple> || kIsInstance<T, std::pair>) {
    return kAllFlattenable<T>;
  } else if constexpr (kIsInstance<T, std::vector> || kIsInstance<T, std::optional> || kIsStdArray<T>) {
    return is_flattenable<typename T::value_type>();
  } else if constexpr (kIsInstance<T, std::map>) {
    return Constant<typename T::key_type> && is_flattenable<typename T::mapped_type>();
  } else if constexpr (PlainStruct<T>) {
    return kAllFlattenable<decltype(fields_of(std::declval<T&>()))>;
  } else {
    return false;
  }
}

template <Constant T>
std::string text_of(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return std::to_string(static_cast<std::underlying_type_t<T>>(value));
  } else if constexpr (std::is_floating_point_v<T>) {
    std::ostringstream text;
    text << std::hexfloat << value;
    return std::move(text).str();
  } else if constexpr (std::is_arithmetic_v<T>) {
    return std::to_string(value);
  } else if constexpr (std::is_same_v<T, std::nullopt_t> || std::is_same_v<T, std::monostate>) {
    return "null";
  } else {
    const std::string_view text(value);
    return std::to_string(text.size()) + '"' + std::string(text) + '"';
  }
}

/// Copies `value` with every tensor replaced by `on_tensor(tensor)`; `note(text)` receives structure and constants. One
/// walk serves reading and rebuilding, so that both see the same order.
template <class T, class OnTensor, class Note>
T rebuild(const T& value, OnTensor&& on_tensor, Note&& note) {
  const auto each = [&](const auto& part) { return rebuild(part, on_tensor, note); };
  if constexpr (std::is_same_v<T, at::Tensor>) {
    note("T");
    return on_tensor(value);
  } else if constexpr (Constant<T>) {
    note("=" + text_of(value));
    return value;
  } else if constexpr (kIsInstance<T, std::tuple> || kIsInstance<T, std::pair> || kIsStdArray<T>) {
    note("(");
    T copy = std::apply([&](const auto&... parts) { return T{each(parts)...}; }, value);
    note(")");
    return copy;
  } else if constexpr (kIsInstance<T, std::vector>) {
    note("[" + std::to_string(value.size()));
    T copy;
    copy.reserve(value.size());
    for (const auto& part : value) copy.push_back(each(static_cast<const typename T::value_type&>(part)));
    note("]");
    return copy;
  } else if constexpr (kIsInstance<T, std::map>) {
    note("<" + std::to_string(value.size()));
    T copy;
    for (const auto& [key, part] : value) {
      note(text_of(key) + ":");
      copy.emplace(key, each(part));
    }
    note(">");
    return copy;
  } else if constexpr (kIsInstance<T, std::optional>) {
    note(value ? "?" : "!");
    return value ? T(each(*value)) : T(std::nullopt);
  } else {
    note("{");
    T copy = std::apply([&](const auto&... parts) { return T{each(parts)...}; }, fields_of(value));
    note("}");
    return copy;
  }
}

}  // namespace detail

/// Types that `forward` may take and return: `torch::Tensor`, and constants (arithmetic, enum, string), which become
/// part of the captured program. Also `std::tuple`, `pair`, `array`, `vector`, `map`, `optional` and plain structs of
/// these. A plain struct is an aggregate of up to 16 fields.
template <class T>
concept Flattenable = detail::is_flattenable<std::remove_cvref_t<T>>();

/// Flattens values. O(tensors + constants).
template <class... Values>
[[nodiscard]] Flattened flatten(const Values&... values) {
  static_assert(
      (Flattenable<Values> && ...),
      "autopar: arguments and results of forward must be tensors, constants (numbers, enums, strings) or "
      "tuples, pairs, arrays, vectors, maps, optionals and plain structs (aggregates of up to 16 fields, no C "
      "arrays) of these");
  Flattened flat;
  const auto take = [&](const at::Tensor& tensor) {
    flat.tensors.push_back(tensor);
    return tensor;
  };
  const auto note = [&](const std::string& text) { flat.structure += text; };
  (static_cast<void>(detail::rebuild(values, take, note)), ...);
  return flat;
}

/// A copy of `prototype` that holds `tensors`, in flatten's order. Constants and lengths are the prototype's.
/// @pre the prototype has as many tensors as `tensors`
template <Flattenable T>
[[nodiscard]] T with_tensors(const T& prototype, const std::vector<at::Tensor>& tensors) {
  std::size_t next = 0;
  T copy = detail::rebuild(
      prototype,
      [&](const at::Tensor&) {
        AUTOPAR_ASSERT(next < tensors.size(), "a result has more tensors than its capture");
        return tensors[next++];
      },
      [](const std::string&) {});
  AUTOPAR_ASSERT(next == tensors.size(), "a result has fewer tensors than its capture");
  return copy;
}

}  // namespace autopar
