#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include <autopar/io/regular_file.hpp>

namespace autopar {

/// How far a run has come.
struct StepReached {
  std::int64_t step = 0;  ///< steps done
  double time = 0;        ///< when that was, in seconds since 1970

  friend bool operator==(const StepReached&, const StepReached&) = default;
};

/// A small file that says how far a run has come, also after its process was killed. Of one process at a time.
class StepPage {
 public:
  /// Makes the file, or goes on with it: what it says stays until `reach`. The folder exists.
  /// @throws ConfigError if the file cannot be made or is no regular file
  explicit StepPage(const std::filesystem::path& file);

  /// A microsecond: written to the system's memory, not synced. What cannot be written is left.
  void reach(const StepReached& reached) noexcept;

 private:
  RegularFile file_;
};

/// What the file says; nothing if there is none or it is damaged. Another process may be writing it.
[[nodiscard]] std::optional<StepReached> step_reached(const std::filesystem::path& file);

}  // namespace autopar
