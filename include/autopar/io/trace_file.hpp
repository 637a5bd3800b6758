#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>

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
[[nodiscard]] std::string to_chrome_trace(const std::vector<TraceEvent>& events);
void write_chrome_trace(const std::filesystem::path& path, const std::vector<TraceEvent>& events);

}  // namespace autopar
