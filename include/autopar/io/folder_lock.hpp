#pragma once

#include <cstdint>
#include <filesystem>

#include <sys/types.h>

#include <autopar/io/regular_file.hpp>

namespace autopar {

/// The file in a locked folder.
inline constexpr const char* kLockFile = ".autopar-lock";

enum class LockKind : std::uint8_t {
  kAutomatic,  ///< flock; a lease where the file system has no locks
  kLease,      ///< a lease everywhere
};

/// One job a folder: while the object lives, nobody else has a lock of the same folder, in this process or another.
///
///   const FolderLock lock("run/step-1000");   // throws if another job writes there
///
/// The lock is a flock of the file kLockFile, which ends with its process, however that ends. Where the file system has
/// no locks it is a lease: the file exists, and says which process of which host made it. A lease whose process is gone
/// is taken over on the same host; on other hosts nobody can know, so the message says which file to remove. The
/// destructor removes the file. A fork shares the lock and cannot release it.
class FolderLock {
 public:
  /// Makes the folder if there is none.
  /// @throws CheckpointError, if another job holds it, with its process, host and time, and how to go on
  /// @throws CheckpointError with the system's reason, if the file cannot be made or is not a regular file
  explicit FolderLock(const std::filesystem::path& folder, LockKind kind = LockKind::kAutomatic);
  ~FolderLock() { release(); }
  FolderLock(FolderLock&&) noexcept = default;
  FolderLock& operator=(FolderLock&& other) noexcept;  ///< releases the lock that it had

  /// Whether an object of this process holds the folder's lock.
  [[nodiscard]] static bool is_held_here(const std::filesystem::path& folder);

 private:
  [[nodiscard]] bool acquire(LockKind kind);
  void release() noexcept;

  std::filesystem::path path_;
  RegularFile file_;
  ::pid_t owner_ = 0;
};

}  // namespace autopar
