#pragma once

#include <cstdint>

namespace autopar {

/// Half-open range of samples, counted within a micro-batch, or of elements.
struct Interval {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  [[nodiscard]] constexpr std::int64_t size() const { return end - begin; }
  [[nodiscard]] constexpr bool empty() const { return end <= begin; }
  [[nodiscard]] friend constexpr Interval intersect(Interval a, Interval b) {
    const Interval both{a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
    return both.end > both.begin ? both : Interval{};
  }
  friend constexpr bool operator==(Interval, Interval) = default;
};

}  // namespace autopar
