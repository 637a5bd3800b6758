#include <autopar/io/cache_folder.hpp>

#include <cerrno>
#include <cstring>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <autopar/io/checksum.hpp>

#include "atomic_file.hpp"
#include "hash_text.hpp"

namespace autopar {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kTitle = "autopar cache ";
constexpr std::string_view kFormat = "1";
constexpr off_t kMostBytes = off_t{1} << 30;
constexpr mode_t kWritableByOthers = 022;
constexpr mode_t kPrivateFolder = 0700, kPrivateFile = 0600;

/// Closed when it goes.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  [[nodiscard]] int get() const { return number_; }
  [[nodiscard]] bool is_open() const { return number_ >= 0; }

 private:
  int number_;
};

/// A file is its header and its content: damage of either makes them differ.
std::string header_of(std::string_view name, std::string_view content) {
  std::string header(kTitle);
  header += kFormat;
  header += ' ';
  header += name;
  header += ' ' + std::to_string(content.size());
  header += ' ' + detail::hash_text(checksum(std::as_bytes(std::span(content.data(), content.size()))));
  return header + '\n';
}

std::string octal(mode_t mode) {
  std::string digits = "0";
  for (int shift = 6; shift >= 0; shift -= 3) digits += static_cast<char>('0' + ((mode >> shift) & 7));
  return digits;
}

/// Who else could have written it; empty: nobody.
std::string distrusted(const struct stat& status) {
  if (status.st_uid != ::geteuid() && status.st_uid != 0) {
    return "it belongs to user " + std::to_string(status.st_uid) + ", not to user " + std::to_string(::geteuid()) +
           ", who runs the program";
  }
  if ((status.st_mode & kWritableByOthers) != 0) return "others may write to it (mode " + octal(status.st_mode) + ")";
  return {};
}

bool read_all(int descriptor, std::string& text) {
  std::size_t have = 0;
  while (have < text.size()) {
    const auto got = ::read(descriptor, text.data() + have, text.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return false;
    if (got == 0) break;
    have += static_cast<std::size_t>(got);
  }
  text.resize(have);
  return true;
}

bool write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const auto written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

/// A file of a name of its own, locked: unlike a file whose writer was killed. The lock comes after the file, so that
/// somebody may have removed it in between.
Descriptor open_aside(int folder, const std::string& name, std::string& aside) {
  constexpr int kMostAttempts = 100;
  for (int attempts = 0; attempts < kMostAttempts; ++attempts) {
    aside = name + detail::kPartialMark + detail::random_ending();
    Descriptor file(
        ::openat(folder, aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kPrivateFile));
    if (!file.is_open() && errno != EEXIST) break;
    if (!file.is_open()) continue;
    ::flock(file.get(), LOCK_EX);
    struct stat status {};
    if (::fstat(file.get(), &status) == 0 && status.st_nlink > 0) return file;
  }
  return Descriptor(-1);
}

bool is_partial(std::string_view name) {
  const auto mark = name.rfind(detail::kPartialMark);
  return mark != std::string_view::npos &&
         name.size() == mark + std::strlen(detail::kPartialMark) + detail::kPartialLetters;
}

/// Unless somebody is writing it, who finds by the lock that it is gone.
void remove_abandoned(int folder, const std::string& name) {
  const Descriptor file(::openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.is_open() && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0) ::unlinkat(folder, name.c_str(), 0);
}

/// @return the system's reason why one could not be made; 0: all are there
int make_folders_above(const fs::path& path) {
  for (fs::path above; const auto& part : path.parent_path()) {
    above /= part;
    if (::mkdir(above.c_str(), kPrivateFolder) != 0 && errno != EEXIST) return errno;
  }
  return 0;
}

}  // namespace

CacheFolder::CacheFolder(fs::path path, Report report, IsStale is_stale)
    : path_(std::move(path)), report_(std::move(report)), is_stale_(is_stale) {
  if (!path_.has_filename() && path_.has_relative_path()) path_ = path_.parent_path();  // "folder/" would follow a link
}

CacheFolder::CacheFolder(std::shared_ptr<CacheFolder> parent, const std::string& name, IsStale is_stale)
    : parent_(std::move(parent)), path_(parent_->path() / name), is_stale_(is_stale) {}

CacheFolder::~CacheFolder() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::optional<std::string> CacheFolder::read(const std::string& name) {
  const int folder = opened(false);
  if (folder < 0) return std::nullopt;
  const Descriptor file(::openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  const auto refuse = [&](const std::string& reason) {
    refuse_file(name, reason);
    return std::nullopt;
  };
  if (!file.is_open()) {
    if (errno == ENOENT) return std::nullopt;
    return refuse(errno == ELOOP ? "it is a link" : std::strerror(errno));
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return refuse(std::strerror(errno));
  if (!S_ISREG(status.st_mode)) return refuse("it is no regular file");
  if (const auto reason = distrusted(status); !reason.empty()) return refuse(reason);
  if (status.st_size > kMostBytes) return refuse("it has " + std::to_string(status.st_size) + " bytes");
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  if (!read_all(file.get(), text)) return refuse(std::strerror(errno));
  const auto end = text.find('\n');
  if (!text.starts_with(kTitle) || end == std::string::npos) return refuse("it is damaged: it has no header");
  const auto content = std::string_view(text).substr(end + 1);
  if (std::string_view(text).substr(0, end + 1) != header_of(name, content))
    return refuse("it is damaged, or of another version: its header is not the one of its content");
  return text.substr(end + 1);
}

bool CacheFolder::write(const std::string& name, std::string_view content) {
  const int folder = opened(true);
  if (folder < 0) return false;
  std::string aside;
  const Descriptor file = open_aside(folder, name, aside);
  if (file.is_open() && write_all(file.get(), header_of(name, content)) && write_all(file.get(), content) &&
      ::fsync(file.get()) == 0 && ::renameat(folder, aside.c_str(), folder, name.c_str()) == 0) {
    ::fsync(folder);
    return true;
  }
  const std::string reason = std::strerror(errno);
  if (file.is_open()) ::unlinkat(folder, aside.c_str(), 0);
  say(CacheTrouble::kNotKept, "nothing is kept as " + (path_ / name).string() + ": " + reason);
  return false;
}

/// -1: it is not there, or not used.
int CacheFolder::opened(bool make) {
  const std::lock_guard lock(mutex_);
  if (descriptor_ >= 0 || is_refused_) return descriptor_;
  const int parent = parent_ ? parent_->opened(make) : AT_FDCWD;
  if (parent_ && parent < 0) return -1;
  Descriptor folder(open_or_make(parent, make));
  if (!folder.is_open()) return -1;
  struct stat status {};
  const bool is_known = ::fstat(folder.get(), &status) == 0;
  if (const auto reason = is_known ? distrusted(status) : std::string(std::strerror(errno)); !reason.empty()) {
    is_refused_ = true;
    say(CacheTrouble::kRefused,
        "the cache " + path_.string() + " is not used: " + reason +
            (is_known && (status.st_mode & kWritableByOthers) != 0 && status.st_uid == ::geteuid()
                 ? "; allow it by: chmod 700 '" + path_.string() + "'"
                 : "; let XDG_CACHE_HOME name a folder of your own"));
    return -1;
  }
  const bool is_own = status.st_uid == ::geteuid();
  if (is_own && (status.st_mode & 0777) != kPrivateFolder) ::fchmod(folder.get(), kPrivateFolder);
  descriptor_ = ::fcntl(folder.get(), F_DUPFD_CLOEXEC, 0);
  if (is_own && descriptor_ >= 0) remove_leftovers();
  return descriptor_;
}

/// -1: it is not there, or something else is, which is said.
int CacheFolder::open_or_make(int parent, bool make) {
  const auto name = parent_ ? path_.filename() : path_;
  const auto open = [&] { return ::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC); };
  int folder = open();
  if (folder < 0 && errno == ENOENT) {
    if (!make) return -1;
    int error = parent_ ? 0 : make_folders_above(path_);
    if (error == 0 && ::mkdirat(parent, name.c_str(), kPrivateFolder) != 0 && errno != EEXIST) error = errno;
    if (error != 0) {
      const std::string reason = std::strerror(error);
      is_refused_ = true;
      say(CacheTrouble::kNotKept, "nothing is kept in " + path_.string() + ": " + reason);
      return -1;
    }
    folder = open();
  }
  if (folder >= 0) return folder;
  std::string reason = std::strerror(errno);
  struct stat status {};
  if (::fstatat(parent, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) {
    if (S_ISLNK(status.st_mode))
      reason = "it is a link; remove it, or let XDG_CACHE_HOME name the folder that is meant";
    else if (!S_ISDIR(status.st_mode))
      reason = "it is no folder; remove it";
  }
  is_refused_ = true;
  say(CacheTrouble::kRefused, "the cache " + path_.string() + " is not used: " + reason);
  return -1;
}

void CacheFolder::remove_leftovers() const {
  DIR* const list = ::fdopendir(::openat(descriptor_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (list == nullptr) return;
  std::vector<std::string> names;
  while (const auto* const item = ::readdir(list)) {
    const std::string_view name(item->d_name);
    if (is_partial(name) || (is_stale_ != nullptr && is_stale_(name))) names.emplace_back(name);
  }
  ::closedir(list);
  for (const auto& name : names) {
    if (is_partial(name))
      remove_abandoned(descriptor_, name);
    else
      ::unlinkat(descriptor_, name.c_str(), 0);
  }
}

void CacheFolder::refuse_file(const std::string& name, const std::string& reason) {
  say(CacheTrouble::kRefused,
      "the cached file " + (path_ / name).string() + " is not used: " + reason + "; it is made again");
}

void CacheFolder::say(CacheTrouble trouble, const std::string& message) {
  if (parent_) return parent_->say(trouble, message);
  const std::lock_guard lock(said_mutex_);
  if (said_.insert(message).second && report_) report_(trouble, message);
}

}  // namespace autopar
