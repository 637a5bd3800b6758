#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// A trace as `Options::trace_file` writes it, read by its text.
namespace trace_rows {

struct Row {
  std::string text;
  std::string name, category, op, module;
  int rank = 0, thread = 0;
  double begin = 0, end = 0;  ///< microseconds
  std::int64_t step = -1;
};

namespace detail {

inline std::string word(const std::string& row, const std::string& key) {
  const auto opening = "\"" + key + "\":\"";
  const auto at = row.find(opening);
  if (at == std::string::npos) return "";
  const auto begin = at + opening.size();
  return row.substr(begin, row.find('"', begin) - begin);
}

inline double number(const std::string& row, const std::string& key, double missing) {
  const auto opening = "\"" + key + "\":";
  const auto at = row.find(opening);
  return at == std::string::npos ? missing : std::stod(row.substr(at + opening.size(), 40));
}

}  // namespace detail

/// Its bars, in the order of the file. Names with quotes are cut short.
inline std::vector<Row> bars_of(const std::string& trace) {
  constexpr std::string_view kBar = R"({"ph":"X")", kAny = R"({"ph":")";
  std::vector<Row> rows;
  for (auto at = trace.find(kBar); at != std::string::npos; at = trace.find(kBar, at + 1)) {
    Row row;
    row.text = trace.substr(at, trace.find(kAny, at + 1) - at);
    row.name = detail::word(row.text, "name");
    row.category = detail::word(row.text, "cat");
    row.op = detail::word(row.text, "operator");
    row.module = detail::word(row.text, "module");
    row.rank = static_cast<int>(detail::number(row.text, "pid", -1));
    row.thread = static_cast<int>(detail::number(row.text, "tid", -1));
    row.begin = detail::number(row.text, "ts", 0);
    row.end = row.begin + detail::number(row.text, "dur", 0);
    row.step = static_cast<std::int64_t>(detail::number(row.text, "step", -1));
    rows.push_back(row);
  }
  return rows;
}

/// The bars of a rank's latest step.
inline std::vector<Row> latest_bars_of(const std::string& trace, int rank) {
  auto rows = bars_of(trace);
  std::erase_if(rows, [&](const Row& row) { return row.rank != rank; });
  std::int64_t latest = -1;
  for (const auto& row : rows) latest = std::max(latest, row.step);
  std::erase_if(rows, [&](const Row& row) { return row.step != latest; });
  return rows;
}

/// The same as text.
inline std::string latest_step_of(const std::string& trace, int rank) {
  std::string text;
  for (const auto& row : latest_bars_of(trace, rank)) text += row.text + "\n";
  return text;
}

}  // namespace trace_rows
