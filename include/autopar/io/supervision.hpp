#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace autopar {

/// What `autopar run` tells the ranks that it starts.
struct Supervision {
  std::filesystem::path folder{};  ///< of the supervisor, absolute: logs, and the page of the latest step
  std::string job{};               ///< names the job's snapshots on each host; equal in all of its starts
  std::int64_t start = 1;          ///< 1, and one more after each restart
  bool may_change_batch = false;   ///< `--allow-batch-change`

  friend bool operator==(const Supervision&, const Supervision&) = default;
};

/// In its folder: the page of the latest step (StepPage), which rank 0 writes.
inline constexpr const char* kStepFile = "step";

/// The environment variable that has it.
inline constexpr const char* kSupervisionVariable = "AUTOPAR_RUN";

/// As the variable's value; read back equal.
[[nodiscard]] std::string to_text(const Supervision& supervision);

/// Where the ranks keep snapshots of a job on each host: /dev/shm/autopar-USER-JOB, of the user's effective number. The
/// supervisor makes it on its own host and removes it on all of them at the end.
[[nodiscard]] std::filesystem::path snapshot_folder(const std::string& job);

/// Whether and how this process is supervised.
/// @param environment  as process_environment()
/// @throws ConfigError if the variable's value is not of to_text
[[nodiscard]] std::optional<Supervision> supervision(const std::vector<std::string>& environment);

}  // namespace autopar
