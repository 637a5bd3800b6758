#include "atomic_file.hpp"

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <random>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace autopar::detail {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void fail(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

/// A file system that cannot sync folders has the renamed file all the same, so only a failing disk is an error.
void sync_folder(const fs::path& folder) {
  const int descriptor = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  const int error = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  if (error != EIO) return;
  errno = error;
  fail(folder.string());
}

/// Whether a link is what the system shows of an open descriptor: it leads to what is open, whatever it says.
bool names_descriptor(const fs::path& link) {
  std::error_code ignored;
  return fs::canonical(link.has_parent_path() ? link.parent_path() : ".", ignored).string().starts_with("/proc/");
}

/// A descriptor of this process is shared with whoever else writes there, so that neither overwrites the other.
int open_directly(const fs::path& path) {
  std::error_code ignored;
  const auto name = path.filename().string();
  int number = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool is_number = error == std::errc() && end == name.data() + name.size();
  const auto own = fs::path("/proc") / std::to_string(::getpid()) / "fd";
  if (is_number && fs::canonical(path.parent_path(), ignored) == own) return ::fcntl(number, F_DUPFD_CLOEXEC, 0);
  const int file = ::open(path.c_str(), O_WRONLY | O_APPEND | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  if (file >= 0) ::fcntl(file, F_SETFL, O_APPEND);  // only opening must not wait: a pipe may have no reader
  return file;
}

}  // namespace

void make_folders(const fs::path& folder) {
  if (folder.empty() || fs::is_directory(folder)) return;
  make_folders(folder.parent_path());
  if (fs::create_directory(folder)) sync_folder(folder.parent_path());
}

std::string random_ending() {
  constexpr char kLetters[] = "0123456789abcdefghijklmnopqrstuv";
  std::random_device source;
  std::string ending;
  for (std::size_t i = 0; i < kPartialLetters; ++i) ending += kLetters[source() % 32];
  return ending;
}

Destination destination_of(const fs::path& path) {
  constexpr int kMostLinks = 40;  // as the system has it
  Destination to{path, true, std::nullopt, false};
  for (int links = 0; fs::is_symlink(fs::symlink_status(to.path)); ++links) {
    if (links == kMostLinks) {
      errno = ELOOP;
      fail(path.string());
    }
    if (names_descriptor(to.path)) {
      to.is_replaced = false;
      to.is_descriptor = true;
      break;
    }
    const auto target = fs::read_symlink(to.path);
    to.path = target.is_absolute() ? target : to.path.parent_path() / target;
  }
  struct stat status {};
  if (::stat(to.path.c_str(), &status) == 0) {
    to.there = status;
    to.is_replaced = to.is_replaced && S_ISREG(status.st_mode);
  }
  return to;
}

AtomicFile::AtomicFile(const fs::path& path) : to_(destination_of(path)) {
  if (!to_.is_replaced) {
    descriptor_ = open_directly(to_.path);
    if (descriptor_ < 0) fail(to_.path.string());
    return;
  }
  make_folders(to_.path.parent_path());
  if (to_.there && ::faccessat(AT_FDCWD, to_.path.c_str(), W_OK, AT_EACCESS) != 0) fail(to_.path.string());
  open_aside();
}

// Between its creation and its lock somebody may have taken it for abandoned and removed it.
void AtomicFile::open_aside() {
  struct stat status {};
  for (int attempts = 0; descriptor_ < 0; ++attempts) {
    const auto name = to_.path.string() + kPartialMark + random_ending();
    descriptor_ = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, to_.there ? 0600 : 0666);
    if (descriptor_ < 0) {
      if (errno != EEXIST || attempts == 100) fail(name);
      continue;
    }
    aside_ = name;
    ::flock(descriptor_, LOCK_EX);  // only who looks at it for removal can hold it, and not for long
    if (::fstat(descriptor_, &status) == 0 && status.st_nlink == 0) ::close(std::exchange(descriptor_, -1));
  }
  if (!to_.there) return;
  constexpr mode_t kPermissions = 07777;
  const bool is_mine = to_.there->st_uid == ::geteuid() && to_.there->st_gid == ::getegid();
  // Who may not give files away has one of its own instead.
  if (!is_mine && ::fchown(descriptor_, to_.there->st_uid, to_.there->st_gid) != 0) errno = 0;
  ::fchmod(descriptor_, to_.there->st_mode & kPermissions);
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!aside_.empty()) ::unlink(aside_.c_str());
}

void AtomicFile::write(std::span<const std::byte> data) {
  while (!data.empty()) {
    const auto written = ::write(descriptor_, data.data(), data.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      fail((aside_.empty() ? to_.path : aside_).string());
    }
    data = data.subspan(static_cast<std::size_t>(written));
  }
}

void AtomicFile::rewrite(std::int64_t position, std::span<const std::byte> data) {
  while (!data.empty()) {
    const auto written = ::pwrite(descriptor_, data.data(), data.size(), position);
    if (written < 0) {
      if (errno == EINTR) continue;
      fail(aside_.string());
    }
    data = data.subspan(static_cast<std::size_t>(written));
    position += written;
  }
}

void AtomicFile::commit() {
  const bool is_renamed = !aside_.empty();
  if (is_renamed) {
    if (::fsync(descriptor_) != 0) fail(aside_.string());
    if (::rename(aside_.c_str(), to_.path.c_str()) != 0)
      fail(to_.path.string());  // before the lock goes with the descriptor
    aside_.clear();
  }
  if (::close(std::exchange(descriptor_, -1)) != 0) fail(to_.path.string());
  if (is_renamed) sync_folder(to_.path.parent_path());
}

}  // namespace autopar::detail
