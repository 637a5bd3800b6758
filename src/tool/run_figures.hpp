#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace autopar::tool {

/// A figure of a run, as its newest line says.
struct Figure {
  double value = 0;
  std::int64_t step = 0;
};

/// Reads `metrics.jsonl` of a run, which may still be written: only what is new since the last look, of a long file its
/// end. Lines that are damaged or not complete are passed over.
class RunFigures {
 public:
  explicit RunFigures(std::filesystem::path file) : file_(std::move(file)) {}

  /// @throws ConfigError if the file cannot be read
  void look();

  [[nodiscard]] const std::map<std::string, Figure>& newest() const { return newest_; }
  /// Of "loss", oldest first.
  [[nodiscard]] const std::vector<double>& losses() const { return losses_; }
  [[nodiscard]] std::int64_t step() const { return step_; }
  /// Of the newest line, in seconds since 1970; 0: there is none.
  [[nodiscard]] double time() const { return time_; }

 private:
  void take(const std::string& line);

  std::filesystem::path file_;
  std::uintmax_t read_ = 0;  ///< bytes, up to the end of a line
  std::map<std::string, Figure> newest_{};
  std::vector<double> losses_{};
  std::int64_t step_ = 0;
  double time_ = 0;
};

}  // namespace autopar::tool
