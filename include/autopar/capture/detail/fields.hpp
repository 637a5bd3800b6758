#pragma once

#include <cstddef>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

namespace autopar::detail {

inline constexpr std::size_t kMaxFields = 16;

/// Converts to whatever a field is initialised from; never evaluated.
struct AnyField {
  template <class T>
  operator T&() const&;
  template <class T>
  operator T&&() const&&;
};

template <class T, std::size_t... I>
constexpr bool constructible_from_fields(std::index_sequence<I...>) {
  return requires { T{(static_cast<void>(I), std::declval<AnyField>())...}; };
}

template <class T, std::size_t N = kMaxFields + 1>
constexpr std::size_t count_fields() {
  if constexpr (constructible_from_fields<T>(std::make_index_sequence<N>{})) {
    return N;
  } else if constexpr (N == 0) {
    return 0;
  } else {
    return count_fields<T, N - 1>();
  }
}

/// A struct that can be taken apart by structured bindings: an aggregate of 1 … 16 fields, no union, no C array.
template <class T>
concept PlainStruct = std::is_aggregate_v<T> && std::is_class_v<T> && !std::is_union_v<T> && (count_fields<T>() >= 1) &&
                      (count_fields<T>() <= kMaxFields);

// Structured bindings cannot be counted out by a pack before C++26, hence one line for each number of fields.
#define AUTOPAR_FIELDS(count, ...)             \
  else if constexpr (kCount == count) {        \
    auto& [__VA_ARGS__] = value;               \
    return std::forward_as_tuple(__VA_ARGS__); \
  }

/// References to all fields of a plain struct, in order.
template <PlainStruct T>
constexpr auto fields_of(T& value) {
  constexpr std::size_t kCount = count_fields<std::remove_const_t<T>>();
  if constexpr (kCount == 1) {
    auto& [a] = value;
    return std::forward_as_tuple(a);
  }
  AUTOPAR_FIELDS(2, a, b)
  AUTOPAR_FIELDS(3, a, b, c)
  AUTOPAR_FIELDS(4, a, b, c, d)
  AUTOPAR_FIELDS(5, a, b, c, d, e)
  AUTOPAR_FIELDS(6, a, b, c, d, e, f)
  AUTOPAR_FIELDS(7, a, b, c, d, e, f, g)
  AUTOPAR_FIELDS(8, a, b, c, d, e, f, g, h)
  AUTOPAR_FIELDS(9, a, b, c, d, e, f, g, h, i)
  AUTOPAR_FIELDS(10, a, b, c, d, e, f, g, h, i, j)
  AUTOPAR_FIELDS(11, a, b, c, d, e, f, g, h, i, j, k)
  AUTOPAR_FIELDS(12, a, b, c, d, e, f, g, h, i, j, k, l)
  AUTOPAR_FIELDS(13, a, b, c, d, e, f, g, h, i, j, k, l, m)
  AUTOPAR_FIELDS(14, a, b, c, d, e, f, g, h, i, j, k, l, m, n)
  AUTOPAR_FIELDS(15, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o)
  AUTOPAR_FIELDS(16, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)
}

#undef AUTOPAR_FIELDS

}  // namespace autopar::detail
