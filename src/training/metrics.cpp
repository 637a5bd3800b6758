#include <autopar/training/metrics.hpp>

#include <array>
#include <charconv>
#include <functional>
#include <string>

#include <nlohmann/json.hpp>

#include <autopar/core/error.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/wall_clock.hpp>

namespace autopar::training {

namespace {

constexpr const char* kLines = "metrics.jsonl";
constexpr const char* kTable = "metrics.csv";
constexpr const char* kColumns = "step,time,name,value";

// A killed writer may have left half a line: it counts as later.

bool is_line_up_to(const std::string& line, std::int64_t last) {
  const auto parsed = nlohmann::json::parse(line, nullptr, false);
  return parsed.is_object() && parsed.contains("step") && parsed["step"].is_number_integer() && parsed["step"] <= last;
}

bool is_row_up_to(const std::string& row, std::int64_t last) {
  std::int64_t step = 0;
  const auto* const end = row.data() + row.size();
  const auto [rest, error] = std::from_chars(row.data(), end, step);
  const bool is_whole = error == std::errc() && rest != end && *rest == ',';
  return is_whole && step <= last;
}

/// Keeps what is of steps up to a checkpoint, and appends behind it.
std::ofstream reopened(const std::filesystem::path& path, const std::string& head,
                       const std::function<bool(const std::string&)>& stays) {
  std::string kept = head;
  std::ifstream before(path);
  for (std::string line; std::getline(before, line);) {
    if (!before.eof() && stays(line)) kept += line + '\n';  // at the end of the file: half a line
  }
  before.close();
  write_text_file(path, kept);
  return std::ofstream(path, std::ios::app);
}

/// The shortest text that is read back as the same number.
std::string text_of(double number) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
}

/// A field of CSV (RFC 4180).
std::string field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + '"';
}

}  // namespace

Metrics::Metrics(const std::filesystem::path& folder, std::int64_t after)
    : folder_(folder),
      lines_(reopened(folder / kLines, "", [&](const auto& line) { return is_line_up_to(line, after); })),
      table_(reopened(folder / kTable, std::string(kColumns) + '\n',
                      [&](const auto& row) { return is_row_up_to(row, after); })),
      events_(folder, after) {}

void Metrics::write(std::int64_t step, const Values& values) {
  const double time = seconds_since_1970();
  nlohmann::ordered_json line{{"step", step}, {"time", time}};
  std::string rows;
  for (const auto& [name, value] : values) {
    line[name] = value;
    rows += std::to_string(step) + ',' + text_of(time) + ',' + field(name) + ',' + text_of(value) + '\n';
  }
  lines_ << line.dump() << std::endl;
  table_ << rows << std::flush;
  const auto* const failed = !lines_ ? kLines : !table_ ? kTable : nullptr;
  if (failed != nullptr) throw ConfigError("cannot write the file; is the disk full?", (folder_ / failed).string());
  events_.write(time, step, values);
}

}  // namespace autopar::training
