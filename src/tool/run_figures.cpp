#include "run_figures.hpp"

#include <cmath>
#include <fstream>

#include <nlohmann/json.hpp>

#include <autopar/core/error.hpp>

namespace autopar::tool {

namespace {

constexpr std::uintmax_t kMostRead = std::uintmax_t{4} << 20;  ///< bytes in a look
constexpr std::size_t kMostFigures = 200, kMostLosses = 60;

}  // namespace

void RunFigures::look() {
  std::error_code error;
  const auto size = std::filesystem::file_size(file_, error);
  if (error) throw ConfigError(error.message(), file_.string());
  if (size < read_) *this = RunFigures(file_);  // a later start dropped steps after its checkpoint
  const bool skips = size - read_ > kMostRead;
  if (skips) read_ = size - kMostRead;
  std::ifstream file(file_, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(read_));
  std::string line;
  if (skips && std::getline(file, line)) read_ += line.size() + 1;  // from its middle
  while (std::getline(file, line) && !file.eof()) {
    read_ += line.size() + 1;
    take(line);
  }
}

void RunFigures::take(const std::string& line) {
  const auto read = nlohmann::json::parse(line, nullptr, false);
  if (!read.is_object() || !read.contains("step") || !read["step"].is_number_integer()) return;
  step_ = read["step"];
  if (read.contains("time") && read["time"].is_number()) time_ = read["time"];
  for (const auto& [name, value] : read.items()) {
    if (name == "step" || name == "time") continue;
    if (newest_.size() >= kMostFigures && !newest_.contains(name)) continue;
    newest_[name] = {value.is_number() ? value.get<double>() : std::nan(""), step_};
    if (name != "loss") continue;
    if (losses_.size() == kMostLosses) losses_.erase(losses_.begin());
    losses_.push_back(newest_[name].value);
  }
}

}  // namespace autopar::tool
