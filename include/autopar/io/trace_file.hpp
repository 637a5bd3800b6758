#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>
#include <autopar/io/file.hpp>

namespace autopar {

/// One bar of a timeline.
struct TraceEvent {
  Rank rank;
  std::string lane;  ///< e.g. "compute", "communication"
  std::string name;
  Seconds begin;
  Seconds end;
};

/// Chrome's trace format (chrome://tracing, Perfetto): a process for each rank, a thread for each lane, microseconds.
/// @param model  ModelProfile::hash of the model that ran
[[nodiscard]] std::string to_chrome_trace(const std::vector<TraceEvent>& events, std::uint64_t model);
/// @throws ConfigError if the file exists and is not a trace of this model, unless `overwrite` allows it
void write_chrome_trace(const std::filesystem::path& path, const std::vector<TraceEvent>& events, std::uint64_t model,
                        Overwrite overwrite = Overwrite::kOwn);

}  // namespace autopar
