#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>

#include "training/event_file.hpp"
#include "training/values.hpp"

namespace training {

/// Figures of a run, step by step: `metrics.jsonl`, a JSON object a line, and TensorBoard's event file. Of one rank.
class Metrics {
 public:
  /// Appends to what the folder has of steps up to `after`; later ones, of a run that went on behind its last
  /// checkpoint, are dropped. @throws autopar::ConfigError if the files cannot be written
  Metrics(const std::filesystem::path& folder, std::int64_t after);

  /// In JSON `step`, `time` (seconds since 1970) and the values in 17 digits, null for NaN and infinity. On disk at
  /// once.
  void write(std::int64_t step, const Values& values);

 private:
  std::filesystem::path path_;
  std::ofstream lines_;
  EventFile events_;
};

}  // namespace training
