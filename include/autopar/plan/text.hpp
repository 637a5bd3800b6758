#pragma once

#include <array>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>

namespace autopar {

namespace detail {

/// printf for one number: no locale of a stream gets in.
[[nodiscard]] inline std::string formatted(const char* format, double value) {
  std::array<char, 64> buffer{};
  std::snprintf(buffer.data(), buffer.size(), format, value);
  return buffer.data();
}

}  // namespace detail

/// "512 B", "1.50 MiB", "38.2 GiB": three digits.
[[nodiscard]] inline std::string readable(Bytes bytes) {
  constexpr std::array units{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes.value());
  std::size_t unit = 0;
  while (std::abs(value) >= 1000 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  const char* format = unit == 0                 ? "%.0f"
                       : std::abs(value) < 9.995 ? "%.2f"
                       : std::abs(value) < 99.95 ? "%.1f"
                                                 : "%.0f";
  return detail::formatted(format, value) + " " + units[unit];
}

/// "0", "950", "2.63 M", "1.50 G": three digits.
[[nodiscard]] inline std::string readable_count(std::int64_t count) {
  constexpr std::array units{"", " k", " M", " G", " T", " P"};
  auto value = static_cast<double>(count);
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < units.size()) {
    value /= 1000;
    ++unit;
  }
  const char* format = unit == 0 ? "%.0f" : value < 9.995 ? "%.2f" : value < 99.95 ? "%.1f" : "%.0f";
  return detail::formatted(format, value) + units[unit];
}

/// "1.23 ms", "0", "45.0 us": three digits.
[[nodiscard]] inline std::string readable(Seconds seconds) {
  if (seconds == Seconds{}) return "0";
  constexpr std::array units{"ns", "us", "ms", "s"};
  double value = seconds.value() * 1e9;
  std::size_t unit = 0;
  while (std::abs(value) >= 1000 && unit + 1 < units.size()) {
    value /= 1000;
    ++unit;
  }
  const char* format = std::abs(value) < 9.995 ? "%.2f" : std::abs(value) < 99.95 ? "%.1f" : "%.0f";
  return detail::formatted(format, value) + " " + units[unit];
}

/// "37 %"
[[nodiscard]] inline std::string percent(double share) { return detail::formatted("%.0f", 100 * share) + " %"; }

/// "0-3,6": ascending numbers with runs drawn together.
[[nodiscard]] inline std::string ranges(const std::vector<int>& numbers) {
  std::string out;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    out += (out.empty() ? "" : ",") + std::to_string(numbers[i]);
    if (last > i) out += (last == i + 1 ? "," : "-") + std::to_string(numbers[last]);
    i = last + 1;
  }
  return out;
}

}  // namespace autopar
