#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>

#include <autopar/training/event_file.hpp>
#include <autopar/training/values.hpp>

namespace autopar::training {

/// Figures of a run, step by step: `metrics.jsonl`, a JSON object a line; `metrics.csv`, a figure a line; and
/// TensorBoard's event file. Of one rank.
///
/// The table has the columns step, time, name and value, as steps have different figures. In Python:
/// `pandas.read_csv("metrics.csv").pivot(index="step", columns="name", values="value")`.
class Metrics {
 public:
  /// Appends to what the folder has of steps up to `after`; later ones, of a run that went on behind its last
  /// checkpoint, are dropped. @throws ConfigError if the files cannot be written
  Metrics(const std::filesystem::path& folder, std::int64_t after);

  /// In JSON `step`, `time` (seconds since 1970) and the values in 17 digits, null for NaN and infinity. The table has
  /// the same digits, and nan and inf. On disk at once.
  void write(std::int64_t step, const Values& values);

 private:
  std::filesystem::path folder_;
  std::ofstream lines_, table_;
  EventFile events_;
};

}  // namespace autopar::training
