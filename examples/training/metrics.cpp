#include "training/metrics.hpp"

#include <chrono>
#include <string>

#include <nlohmann/json.hpp>

#include <autopar/core/error.hpp>
#include <autopar/io/file.hpp>

namespace training {

namespace {

/// A killed writer may have left half a line: it counts as later.
bool is_of_step_up_to(const std::string& line, std::int64_t last) {
  const auto parsed = nlohmann::json::parse(line, nullptr, false);
  return parsed.is_object() && parsed.contains("step") && parsed["step"].is_number_integer() && parsed["step"] <= last;
}

void cut(const std::filesystem::path& path, std::int64_t after) {
  std::string kept;
  std::ifstream lines(path);
  for (std::string line; std::getline(lines, line);) {
    if (is_of_step_up_to(line, after)) kept += line + '\n';
  }
  lines.close();
  autopar::write_text_file(path, kept);
}

}  // namespace

Metrics::Metrics(const std::filesystem::path& folder, std::int64_t after)
    : path_(folder / "metrics.jsonl"), events_(folder, after) {
  cut(path_, after);
  lines_.open(path_, std::ios::app);
}

void Metrics::write(std::int64_t step, const Values& values) {
  const std::chrono::duration<double> time = std::chrono::system_clock::now().time_since_epoch();
  nlohmann::ordered_json line{{"step", step}, {"time", time.count()}};
  for (const auto& [name, value] : values) line[name] = value;
  lines_ << line.dump() << std::endl;
  if (!lines_) throw autopar::ConfigError("cannot write the file; is the disk full?", path_.string());
  events_.write(time.count(), step, values);
}

}  // namespace training
