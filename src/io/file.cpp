#include <autopar/io/file.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <span>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <autopar/core/assert.hpp>
#include <autopar/core/error.hpp>
#include <autopar/io/regular_file.hpp>

#include "atomic_file.hpp"
#include "hash_text.hpp"

namespace autopar {

namespace {

constexpr std::size_t kMarkWithin = 256;  // bytes from the start of a file
constexpr std::string_view kMarkBegin = "autopar ";

/// What is open already is read as it is, and so are devices, of which /dev/null is an empty file. All else must be a
/// regular file: a pipe would wait for its writer.
RegularFile open_input(const std::filesystem::path& path, const detail::Destination& from) {
  const bool is_device = from.there && S_ISCHR(from.there->st_mode);
  if (!from.is_descriptor && !is_device) return open_regular(path);
  RegularFile file(::open(path.c_str(), O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC));
  if (from.is_descriptor && file.descriptor() >= 0) ::fcntl(file.descriptor(), F_SETFL, 0);  // its writer is there
  return file;
}

/// A file that is read, open while it lives.
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path) : path_(path.string()) {
    try {
      file_ = open_input(path, detail::destination_of(path));
    } catch (const std::system_error& error) {
      errno = error.code().value();
      fail();
    }
    if (file_.descriptor() < 0) fail();
  }

  [[nodiscard]] std::optional<std::size_t> size() const {
    struct stat status {};
    if (::fstat(file_.descriptor(), &status) != 0) fail();
    if (!S_ISREG(status.st_mode)) return std::nullopt;
    return static_cast<std::size_t>(status.st_size);
  }
  /// Up to so many bytes, fewer only at the end.
  [[nodiscard]] std::string read(std::size_t most) const {
    constexpr std::size_t kChunk = 1 << 20;
    std::string text;
    while (text.size() < most) {
      const auto before = text.size();
      text.resize(before + std::min(kChunk, most - before));
      const auto got = ::read(file_.descriptor(), text.data() + before, text.size() - before);
      text.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
      if (got < 0 && errno != EINTR) fail();
      if (got == 0) break;
    }
    return text;
  }

 private:
  [[noreturn]] void fail() const {
    throw ConfigError("cannot read the file: " + std::string(std::strerror(errno)), path_);
  }

  std::string path_;
  RegularFile file_;
};

/// The mark that the first bytes of a file carry; empty if they carry none.
std::string mark_in(std::string_view head) {
  const auto begin = head.find(kMarkBegin);
  if (begin == std::string_view::npos) return {};
  const auto end = head.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789 ", begin);
  auto mark = head.substr(begin, end == std::string_view::npos ? end : end - begin);
  while (mark.ends_with(' ')) mark.remove_suffix(1);
  return std::string(mark);
}

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& what, std::string_view mark) {
  throw ConfigError(what + ", so it is not replaced by an " + std::string(mark) +
                        "; name another file, remove it, or allow it: overwrite = true, or --force of the tool",
                    path.string());
}

}  // namespace

std::string read_text_file(const std::filesystem::path& path, Bytes limit) {
  const auto most = static_cast<std::size_t>(limit.value());
  const auto refuse_size = [&](const std::string& size) {
    throw ConfigError("the file has " + size + " bytes; at most " + std::to_string(most) + " are read", path.string());
  };
  const InputFile file(path);
  if (const auto size = file.size(); size && *size > most) refuse_size(std::to_string(*size));
  auto text = file.read(most + 1);
  if (text.size() > most) refuse_size("more than " + std::to_string(most));
  return text;
}

void write_text_file(const std::filesystem::path& path, std::string_view content) {
  try {
    detail::AtomicFile file(path);
    file.write(std::as_bytes(std::span(content.data(), content.size())));
    file.commit();
  } catch (const std::system_error& error) {
    throw ConfigError(std::string("cannot write the file: ") + error.what(), path.string());
  }
}

std::string file_mark(std::string_view kind, std::uint64_t model) {
  return std::string(kMarkBegin) + std::string(kind) + " of model " + detail::hash_text(model);
}

void require_replaceable(const std::filesystem::path& path, std::string_view mark, Overwrite overwrite) {
  if (overwrite == Overwrite::kAny) return;
  const auto to = [&]() -> detail::Destination {
    try {
      return detail::destination_of(path);
    } catch (const std::system_error&) {
      return {};  // the writer learns why
    }
  }();
  if (!to.there) return;
  if (S_ISBLK(to.there->st_mode)) refuse(path, "is a disk", mark);
  if (!to.is_replaced || to.there->st_size == 0) return;
  const auto found = mark_in(InputFile(to.path).read(kMarkWithin));
  if (found == mark) return;
  refuse(path, found.empty() ? "was not written by autopar" : "holds an " + found, mark);
}

void write_marked_file(const std::filesystem::path& path, std::string_view content, std::string_view mark,
                       Overwrite overwrite) {
  AUTOPAR_ASSERT(mark_in(content.substr(0, kMarkWithin)) == mark, "a file of autopar carries its mark");
  require_replaceable(path, mark, overwrite);
  write_text_file(path, content);
}

}  // namespace autopar
