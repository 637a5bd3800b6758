#include "atomic_file.hpp"

#include <cerrno>
#include <cstdlib>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace autopar::detail {

namespace {
[[noreturn]] void fail(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

void sync_folder(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;  // a file system without folder sync still has the renamed file
  ::fsync(descriptor);
  ::close(descriptor);
}
}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
  if (path_.has_parent_path()) std::filesystem::create_directories(path_.parent_path());
  open_aside();
  ::fchmod(descriptor_, 0644);
}

// Between its creation and its lock somebody may have taken it for abandoned and removed it.
void AtomicFile::open_aside() {
  struct stat status {};
  do {
    if (descriptor_ >= 0) ::close(descriptor_);
    std::string pattern = path_.string() + kPartialMark + std::string(kPartialLetters, 'X');
    descriptor_ = ::mkostemp(pattern.data(), O_CLOEXEC);
    if (descriptor_ < 0) fail(pattern);
    aside_ = pattern;
    ::flock(descriptor_, LOCK_EX);  // only who looks at it for removal can hold it, and not for long
  } while (::fstat(descriptor_, &status) == 0 && status.st_nlink == 0);
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
      fail(aside_.string());
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
  if (::fsync(descriptor_) != 0) fail(aside_.string());
  if (::rename(aside_.c_str(), path_.c_str()) != 0) fail(path_.string());  // before the lock goes with the descriptor
  aside_.clear();
  if (::close(std::exchange(descriptor_, -1)) != 0) fail(path_.string());
  sync_folder(path_.parent_path());
}

}  // namespace autopar::detail
