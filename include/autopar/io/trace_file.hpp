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

/// Chrome's trace format (chrome://tracing, Perfetto): a process a rank, a thread a lane, microseconds.
/// @param model  ModelProfile::hash of what ran
[[nodiscard]] std::string to_chrome_trace(const std::vector<TraceEvent>& events, std::uint64_t model);
/// @throws ConfigError where the file is there and is no trace of this model, unless it may be overwritten
void write_chrome_trace(const std::filesystem::path& path, const std::vector<TraceEvent>& events, std::uint64_t model,
                        Overwrite overwrite = Overwrite::kOwn);

}  // namespace autopar
