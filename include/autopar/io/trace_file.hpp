#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>
#include <autopar/io/file.hpp>
#include <autopar/plan/report/step_timeline.hpp>

namespace autopar {

/// What a bar is of: `cat` in the file.
enum class TraceCategory : std::uint8_t {
  kForward,
  kBackward,
  kSend,
  kReceive,
  kCollective,
  kOptimizer,
  kCall,          ///< a call of the model, or a backward of a loss outside
  kBetweenCalls,  ///< from the end of one to the beginning of the next
  kOperator,
  kGraph,  ///< a step that is replayed as one CUDA graph
};
/// Of a bar of a step's timeline.
[[nodiscard]] TraceCategory category_of(BarKind kind);
/// "forward", …, "between calls", "operator", "CUDA graph".
[[nodiscard]] const char* name_of(TraceCategory category);

/// One bar of a timeline.
struct TraceEvent {
  Rank rank;
  std::string lane;  ///< e.g. "compute", "communication"
  std::string name;
  Seconds begin;
  Seconds end;
  TraceCategory category = TraceCategory::kForward;
  std::int64_t step = -1;  ///< -1: not of a step
  std::string op{};        ///< kOperator: its name, "aten::linear"
  std::string module{};    ///< kOperator: the innermost module that contains it, "layers.0"; empty: the model itself
};

/// A rank of a timeline.
struct TraceProcess {
  Rank rank;
  std::string name;    ///< "rank 3 (host, device)"
  std::string note{};  ///< e.g. which steps were dropped; empty: none
};

/// Chrome's trace format (chrome://tracing, Perfetto): a process for each rank, a thread for each lane, microseconds.
/// Bars of a lane that overlap and do not nest go to further threads of its name ("communication 2").
/// O(n log n) in the number of events.
/// @param model      ModelProfile::hash of the model that ran
/// @param processes  names of ranks; those that are missing have none
[[nodiscard]] std::string to_chrome_trace(std::vector<TraceEvent> events, std::uint64_t model,
                                          const std::vector<TraceProcess>& processes = {});
/// @throws ConfigError if the file exists and is not a trace of this model, unless `overwrite` allows it
void write_chrome_trace(const std::filesystem::path& path, std::vector<TraceEvent> events, std::uint64_t model,
                        Overwrite overwrite = Overwrite::kOwn, const std::vector<TraceProcess>& processes = {});

}  // namespace autopar
