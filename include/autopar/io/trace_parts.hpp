#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <autopar/core/ids.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/trace_file.hpp>

namespace autopar {

/// What one rank adds to a trace of several ranks.
struct TracePart {
  std::uint64_t model = 0;  ///< ModelProfile::hash
  TraceProcess process;
  std::vector<TraceEvent> events;  ///< all of this rank

  [[nodiscard]] Rank rank() const { return process.rank; }
};

/// JSON. O(events).
[[nodiscard]] std::string to_text(const TracePart& part);
/// Every value is checked. @param file  its name in messages
/// @throws ConfigError with the reason
[[nodiscard]] TracePart parse_trace_part(std::string_view text, const std::string& file);

/// The parts of a trace, until they are one file: "t.json.parts/rank-3.json" for "t.json".
///
/// Each rank replaces its own part at once, so a part outlives a rank that is killed. Ranks that end write a last part,
/// "rank-3.end.json". The rank that ends last joins all parts and removes them. A lock (flock) keeps two joins apart.
class TraceParts {
 public:
  /// What joining met.
  struct Joined {
    int ranks = 0;                       ///< whose parts were joined
    std::filesystem::path path{};        ///< where they are now
    std::vector<std::string> skipped{};  ///< one line for each part that could not be used: file and reason
  };

  /// @param ranks  of the run
  TraceParts(std::filesystem::path trace, int ranks, Overwrite overwrite)
      : trace_(std::move(trace)), ranks_(ranks), overwrite_(overwrite) {}

  /// Makes the folder, and says in it which run it is of.
  /// @throws ConfigError if it cannot be made, or the trace is no regular file beside which there may be a folder
  void open(const std::string& run) const;
  /// The run that the folder here is of; empty: there is none, for example on another host's disk.
  [[nodiscard]] std::string run() const;
  /// @throws ConfigError if it cannot be written
  void write(const TracePart& part) const;
  /// Writes the trace of what is there. A part that is damaged, or of another model, is left out. O(n log n) in events.
  /// @throws ConfigError as write_chrome_trace
  Joined join(std::uint64_t model) const;
  /// Writes a rank's last part. Rank 0, and whoever is last, joins. The last one removes the parts.
  /// @param shares  by rank: whether it will do the same in this folder
  /// @return ranks = 0: others will join
  Joined finish(const TracePart& part, const std::vector<bool>& shares) const;
  /// Joins what a run has left whose ranks were killed, and removes it: "t.killed.json" for "t.json". Of several
  /// models' parts those of the one with most are kept. Called by one rank before others write. ranks = 0: nothing was
  /// left.
  /// @throws ConfigError if that file may not be replaced; then everything stays
  [[nodiscard]] Joined recover() const;

 private:
  [[nodiscard]] std::filesystem::path folder() const;
  [[nodiscard]] std::filesystem::path file_of(int rank, bool is_last) const;
  [[nodiscard]] Joined join_of(std::uint64_t model, int ranks, const std::filesystem::path& to) const;
  void remove() const;
  void remove_folder() const;

  std::filesystem::path trace_;
  int ranks_;
  Overwrite overwrite_;
};

}  // namespace autopar
