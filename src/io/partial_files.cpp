#include <autopar/io/file.hpp>

#include <system_error>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "atomic_file.hpp"

namespace autopar {

namespace {

/// Removes it unless somebody holds its lock, who is writing it still.
bool removed_when_abandoned(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return false;
  struct stat status {};
  const bool abandoned =
      ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) && ::flock(descriptor, LOCK_EX | LOCK_NB) == 0;
  const bool removed = abandoned && ::unlink(path.c_str()) == 0;
  ::close(descriptor);
  return removed;
}

}  // namespace

int remove_partial_files(const std::filesystem::path& path) {
  const auto prefix = path.filename().string() + detail::kPartialMark;
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  int count = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator item(folder, error), end; !error && item != end; item.increment(error)) {
    const auto name = item->path().filename().string();
    const bool is_partial = name.starts_with(prefix) && name.size() == prefix.size() + detail::kPartialLetters;
    if (is_partial && removed_when_abandoned(item->path())) ++count;
  }
  return count;
}

}  // namespace autopar
