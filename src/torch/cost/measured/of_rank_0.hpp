#pragma once

#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include <autopar/runtime/world.hpp>

namespace autopar::cost::detail {

/// Rank 0's values, on every rank. Collective.
/// @param action  for errors
template <class T>
std::vector<T> of_rank_0(World& world, const std::vector<T>& mine, std::string_view action) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto bytes = std::as_bytes(std::span<const T>(mine));
  const auto blob = world.broadcast(Blob(bytes.begin(), bytes.end()), Rank(0), action);
  std::vector<T> values(blob.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), blob.data(), blob.size());
  return values;
}

}  // namespace autopar::cost::detail
