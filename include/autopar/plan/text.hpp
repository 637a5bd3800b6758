#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <string>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>

namespace autopar {

namespace detail {

/// printf for one number, independent of any stream's locale.
[[nodiscard]] inline std::string formatted(const char* format, double value) {
  std::array<char, 64> buffer{};
  std::snprintf(buffer.data(), buffer.size(), format, value);
  return buffer.data();
}

/// Three digits of a number in the unit in which it is below `most`; `whole`: without digits behind the point.
[[nodiscard]] inline std::string in_units(double value, std::initializer_list<const char*> units, double most,
                                          double ratio, bool whole = false) {
  std::size_t unit = 0;
  for (; std::abs(value) >= most && unit + 1 < units.size(); ++unit) value /= ratio;
  const double size = std::abs(value);
  const char* format = whole || size >= 99.95 ? "%.0f" : size < 9.995 ? "%.2f" : "%.1f";
  return formatted(format, value) + units.begin()[unit];
}

}  // namespace detail

/// "512 B", "1.50 MiB", "38.2 GiB": three digits.
[[nodiscard]] inline std::string readable(Bytes bytes) {
  const auto value = static_cast<double>(bytes.value());
  return detail::in_units(value, {" B", " KiB", " MiB", " GiB", " TiB", " PiB"}, 1000, 1024, std::abs(value) < 1000);
}

/// "0", "950", "2.63 M", "1.50 G": three digits.
[[nodiscard]] inline std::string readable_count(std::int64_t count) {
  return detail::in_units(static_cast<double>(count), {"", " k", " M", " G", " T", " P"}, 999.5, 1000, count < 1000);
}

/// "1.23 ms", "0", "45.0 us": three digits.
[[nodiscard]] inline std::string readable(Seconds seconds) {
  if (seconds == Seconds{}) return "0";
  return detail::in_units(seconds.value() * 1e9, {" ns", " us", " ms", " s"}, 1000, 1000);
}

/// "37 %"
[[nodiscard]] inline std::string percent(double share) { return detail::formatted("%.0f", 100 * share) + " %"; }

/// "17.3 %", with so many digits; what is zero but for rounding is "0 %".
[[nodiscard]] inline std::string gap_percent(double gap, int digits = 3) {
  constexpr double kRounding = 5e-5;
  if (std::abs(gap) < kRounding) return "0 %";
  const std::string format = "%." + std::to_string(digits) + "g";
  return detail::formatted(format.c_str(), 100 * gap) + " %";
}

/// "0-3,6": ascending numbers as ranges.
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

/// `ranges`, but only the first and the last of them if there are many.
[[nodiscard]] inline std::string short_ranges(const std::vector<int>& numbers) {
  constexpr std::size_t kMost = 11;
  std::string all = ranges(numbers);
  if (all.size() <= kMost) return all;
  return all.substr(0, all.find(',')) + ",…," + all.substr(all.rfind(',') + 1);
}

/// Rows of cells as lines with aligned columns. The first row is the head, whose cells may have two lines. Columns
/// beyond `width` follow below, with the first column repeated.
[[nodiscard]] inline std::string aligned_table(const std::vector<std::vector<std::string>>& rows,
                                               std::size_t width = 100) {
  using Cells = std::vector<std::string>;
  const auto letters = [](const std::string& text) {  // of UTF-8
    return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
  };
  std::vector<Cells> lines(2);
  bool is_high = false;
  for (const auto& cell : rows.front()) {
    const auto end = cell.find('\n');
    is_high = is_high || end != std::string::npos;
    lines[0].push_back(end == std::string::npos ? "" : cell.substr(0, end));
    lines[1].push_back(end == std::string::npos ? cell : cell.substr(end + 1));
  }
  if (!is_high) lines.erase(lines.begin());
  lines.insert(lines.end(), rows.begin() + 1, rows.end());
  std::vector<std::size_t> widths(rows.front().size(), 0);
  for (const auto& line : lines) {
    for (std::size_t c = 0; c < line.size(); ++c) widths[c] = std::max(widths[c], letters(line[c]));
  }
  std::string text;
  for (std::size_t next = 1; next < widths.size() || text.empty();) {
    std::vector<std::size_t> columns{0};
    std::size_t used = widths[0];
    do {
      if (next == widths.size()) break;
      used += 2 + widths[next];
      columns.push_back(next++);
    } while (next < widths.size() && used + 2 + widths[next] <= width);
    for (const auto& line : lines) {
      std::string out;
      for (const std::size_t c : columns) {
        out += (c == 0 ? "" : "  ") + std::string(widths[c] - letters(line[c]), ' ') + line[c];
      }
      out.erase(out.find_last_not_of(' ') + 1);
      if (!out.empty()) text += out + "\n";  // else a block whose heads have one line each
    }
  }
  return text;
}

}  // namespace autopar
