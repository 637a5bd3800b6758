#include <autopar/io/folder_lock.hpp>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <autopar/core/error.hpp>

#include "atomic_file.hpp"
#include "lock_holder.hpp"

namespace autopar {

namespace fs = std::filesystem;

namespace {

using detail::LockHolder;

constexpr int kMostAttempts = 100;  // each fails only if another job released its lock meanwhile
constexpr std::size_t kMostText = 4096;

enum class Flock : std::uint8_t { kTaken, kBusy, kUnsupported };

[[noreturn]] void fail_at(const fs::path& path, const std::string& reason) {
  throw CheckpointError(path.parent_path().string() + ": cannot lock the folder: " + path.filename().string() + ": " +
                        reason);
}

int open_lock(const fs::path& path, int flags) {
  return ::open(path.c_str(), flags | O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666);
}

Flock try_flock(int descriptor, const fs::path& path) {
  int result = 0;
  do result = ::flock(descriptor, LOCK_EX | LOCK_NB);
  while (result != 0 && errno == EINTR);
  if (result == 0) return Flock::kTaken;
  if (errno == EWOULDBLOCK) return Flock::kBusy;
  if (errno == ENOTSUP || errno == ENOSYS || errno == EINVAL || errno == ENOLCK) return Flock::kUnsupported;
  fail_at(path, std::strerror(errno));
}

/// Whether the path still leads to the open file.
bool is_at(const fs::path& path, int descriptor) {
  struct stat there {
  }, open{};
  return ::lstat(path.c_str(), &there) == 0 && ::fstat(descriptor, &open) == 0 && there.st_dev == open.st_dev &&
         there.st_ino == open.st_ino;
}

std::optional<LockHolder> holder_in(int descriptor) {
  std::string text(kMostText, '\0');
  const auto got = ::pread(descriptor, text.data(), text.size(), 0);
  if (got < 0) return std::nullopt;
  text.resize(static_cast<std::size_t>(got));
  return detail::parse_lock_holder(text);
}

bool write_holder(int descriptor, const LockHolder& holder) {
  const auto text = detail::to_json(holder);
  return ::ftruncate(descriptor, 0) == 0 &&
         ::pwrite(descriptor, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
}

[[noreturn]] void refuse_busy(const fs::path& path, const std::optional<LockHolder>& holder) {
  throw CheckpointError(path.parent_path().string() + ": another job writes to this folder" +
                        (holder ? ": " + described(*holder) : "") + "; wait until it ends, or name another folder");
}

[[noreturn]] void refuse_lease(const fs::path& path, const std::optional<LockHolder>& holder) {
  const auto folder = path.parent_path().string();
  if (!holder) {
    throw CheckpointError(folder + ": the folder is locked by " + path.string() +
                          ", which does not say by whom; if no job writes there, remove that file");
  }
  throw CheckpointError(folder + ": another job writes to this folder: " + described(*holder) +
                        "; wait until it ends, or name another folder; if that process is gone, remove " +
                        path.string());
}

/// Removes the lease of a process that is gone. Who does so holds a second file, so that nobody removes the lease that
/// another has made meanwhile.
void remove_lease_of_the_gone(const fs::path& path, const std::optional<LockHolder>& found) {
  if (!found || !is_gone(*found)) refuse_lease(path, found);
  const auto guard = path.string() + ".takeover";
  const RegularFile guarding(open_lock(guard, O_CREAT | O_EXCL));
  if (guarding.descriptor() < 0) {
    if (errno != EEXIST) fail_at(guard, std::strerror(errno));
    throw CheckpointError(path.parent_path().string() +
                          ": another job is just taking over this folder; if no job starts there, remove " + guard);
  }
  const RegularFile file(open_lock(path, 0));
  const auto holder = file.descriptor() < 0 ? std::nullopt : holder_in(file.descriptor());
  if (holder && is_gone(*holder)) ::unlink(path.c_str());
  ::unlink(guard.c_str());
}

}  // namespace

FolderLock::FolderLock(const fs::path& folder, LockKind kind) : owner_(::getpid()) {
  try {
    detail::make_folders(folder);
    path_ = fs::absolute(folder) / kLockFile;
  } catch (const std::system_error& error) {
    throw CheckpointError(folder.string() + ": cannot make the folder: " + error.what());
  }
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    if (acquire(kind)) return;
  }
  fail_at(path_, "other jobs make and remove it all the time");
}

FolderLock& FolderLock::operator=(FolderLock&& other) noexcept {
  if (this == &other) return *this;
  release();
  path_ = std::move(other.path_);
  file_ = std::move(other.file_);
  owner_ = other.owner_;
  return *this;
}

bool FolderLock::is_held_here(const fs::path& folder) {
  const RegularFile file(open_lock(folder / kLockFile, 0));
  const auto holder = file.descriptor() < 0 ? std::nullopt : holder_in(file.descriptor());
  const auto here = detail::this_process(false);
  return holder && holder->process == here.process && holder->started == here.started && holder->system == here.system;
}

/// @return false: another job released its lock meanwhile, or left one that is removed now
bool FolderLock::acquire(LockKind kind) {
  RegularFile file(open_lock(path_, O_CREAT | O_EXCL));
  const bool is_new = file.descriptor() >= 0;
  if (!is_new && errno == EEXIST) {
    file = RegularFile(open_lock(path_, 0));
    if (file.descriptor() < 0 && errno == ENOENT) return false;
  }
  struct stat status {};
  if (file.descriptor() < 0 || ::fstat(file.descriptor(), &status) != 0) fail_at(path_, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) fail_at(path_, "is not a regular file");

  const auto flock = kind == LockKind::kLease ? Flock::kUnsupported : try_flock(file.descriptor(), path_);
  const bool is_lease = flock == Flock::kUnsupported;
  if (flock == Flock::kBusy) refuse_busy(path_, holder_in(file.descriptor()));
  if (!is_at(path_, file.descriptor())) return false;
  if (!is_new) {
    const auto found = holder_in(file.descriptor());
    if (is_lease) {
      remove_lease_of_the_gone(path_, found);
      return false;
    }
    // Another host may see no locks here and hold a lease.
    if (found && found->is_lease && !is_gone(*found)) refuse_lease(path_, found);
  }
  if (!write_holder(file.descriptor(), detail::this_process(is_lease)) && is_lease) {
    const auto error = errno;
    ::unlink(path_.c_str());
    fail_at(path_, std::string("cannot write: ") + std::strerror(error));
  }
  file_ = std::move(file);
  return true;
}

void FolderLock::release() noexcept {
  if (file_.descriptor() < 0) return;
  if (owner_ == ::getpid()) {
    // First the file goes, then the lock: who opened the file before finds its path empty and makes another.
    if (is_at(path_, file_.descriptor())) ::unlink(path_.c_str());
    ::flock(file_.descriptor(), LOCK_UN);
  }
  file_ = RegularFile();
}

}  // namespace autopar
