#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace autopar::tool {

/// A process that was started for a job.
struct JobProcess {
  ::pid_t process = 0, parent = 0;
  std::optional<int> rank;  ///< none: a launcher's
};

/// Processes of this user on this host, other than this one, whose environment says that they are of the job.
/// @param proc  "/proc", or a folder like it
[[nodiscard]] std::vector<JobProcess> processes_of(const std::string& job, const std::filesystem::path& proc = "/proc");

/// Kills them, and waits until they are gone.
/// @return those that are not after `limit` seconds
std::vector<JobProcess> kill_processes_of(const std::string& job, double limit);

/// The folder of a job's snapshots on this host while the object lives. Its file `supervisor` says whose it is, so that
/// a later run can remove what a killed supervisor has left.
class SnapshotFolder {
 public:
  /// Removes those of supervisors of this user and host that are gone; then makes the folder. A host without /dev/shm
  /// has none, which is no error.
  explicit SnapshotFolder(std::filesystem::path path);
  ~SnapshotFolder();
  SnapshotFolder(const SnapshotFolder&) = delete;
  SnapshotFolder& operator=(const SnapshotFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace autopar::tool
