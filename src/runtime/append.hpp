#pragma once

#include <cstddef>
#include <span>

#include <autopar/runtime/world.hpp>

namespace autopar::detail {

/// The value's own bytes, at the end of `bytes`.
template <class T>
void append(Blob& bytes, const T& value) {
  const auto raw = std::as_bytes(std::span(&value, 1));
  bytes.insert(bytes.end(), raw.begin(), raw.end());
}

}  // namespace autopar::detail
