#include "atomic_file.hpp"

#include <cerrno>
#include <cstdlib>
#include <string>
#include <system_error>

#include <fcntl.h>
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
  std::string pattern = path_.string() + ".partial-XXXXXX";
  descriptor_ = ::mkostemp(pattern.data(), O_CLOEXEC);
  if (descriptor_ < 0) fail(pattern);
  aside_ = pattern;
  ::fchmod(descriptor_, 0644);
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

void AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) fail(aside_.string());
  if (::close(descriptor_) != 0) {
    descriptor_ = -1;
    fail(aside_.string());
  }
  descriptor_ = -1;
  if (::rename(aside_.c_str(), path_.c_str()) != 0) fail(path_.string());
  aside_.clear();
  sync_folder(path_.parent_path());
}

}  // namespace autopar::detail
