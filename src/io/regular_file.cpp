#include <autopar/io/regular_file.hpp>

#include <cerrno>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <autopar/core/error.hpp>

namespace autopar {

namespace {

std::string kind_of(mode_t mode) {
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISLNK(mode)) return "a symbolic link";
  return "a device";
}

[[noreturn]] void fail(const std::filesystem::path& path, int error) {
  throw ConfigError("cannot open: " + std::string(std::strerror(error)), path.string());
}

void require_kind(const std::filesystem::path& path, const struct stat& status) {
  if (S_ISREG(status.st_mode)) return;
  throw ConfigError(
      "it is " + kind_of(status.st_mode) + ", and must be a regular file; name another file, or remove it",
      path.string());
}

int status_of(const std::filesystem::path& path, Links links, struct stat& status) {
  return links == Links::kFollowed ? ::stat(path.c_str(), &status) : ::lstat(path.c_str(), &status);
}

}  // namespace

RegularFile::~RegularFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

// What is there may change between the look and the opening: hence the second look, and an opening that never waits.
RegularFile open_regular(const std::filesystem::path& path, Links links) {
  struct stat status {};
  if (status_of(path, links, status) != 0) fail(path, errno);
  require_kind(path, status);
  const int no_links = links == Links::kRefused ? O_NOFOLLOW : 0;
  RegularFile file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | no_links));
  if (file.descriptor() < 0 || ::fstat(file.descriptor(), &status) != 0) fail(path, errno);
  require_kind(path, status);
  return file;
}

void require_regular(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) require_kind(path, status);
}

}  // namespace autopar
