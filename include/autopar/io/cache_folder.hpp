#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace autopar {

enum class CacheTrouble : std::uint8_t {
  kRefused,  ///< a file or folder is damaged, or others could have written it
  kNotKept,  ///< nothing can be written, e.g. to a full disk
};

/// A folder of files that later processes reuse and that only its owner writes. A damaged or untrusted file counts as
/// missing. Each trouble is reported once; nothing is thrown.
///
///   auto cache = std::make_shared<CacheFolder>("/home/me/.cache/autopar", report);
///   CacheFolder kernels(cache, "kernels");
///   if (const auto code = kernels.read("gelu.kernel")) load(*code);
///   else kernels.write("gelu.kernel", compiled());
///
/// Trust: the folder is made with mode 0700, files with mode 0600. Folder and files must belong to the (effective) user
/// or root, must not be writable by group or others, and must not be links. If the user's folder is readable by others,
/// their access is removed.
///
/// Integrity: a file begins with a line of format version, name, length and XXH3 of its content. Files are written
/// under a temporary name, synced and renamed. What a killed writer left is removed when the folder is opened.
/// Thread-safe.
class CacheFolder {
 public:
  /// @param message  contains the path, the reason and what to do
  using Report = std::function<void(CacheTrouble trouble, const std::string& message)>;
  /// Whether an earlier version wrote a file of this name, so that it is removed.
  using IsStale = bool (*)(std::string_view name);

  /// Does no file access: the first read opens the folder, the first write makes it and its parents.
  explicit CacheFolder(std::filesystem::path path, Report report = {}, IsStale is_stale = nullptr);
  /// A folder within another one, with the other's reports.
  CacheFolder(std::shared_ptr<CacheFolder> parent, const std::string& name, IsStale is_stale = nullptr);
  ~CacheFolder();
  CacheFolder(const CacheFolder&) = delete;
  CacheFolder& operator=(const CacheFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// The content that was written; empty if there is none, or it is refused.
  /// @param name  a file name, not a path
  [[nodiscard]] std::optional<std::string> read(const std::string& name);
  /// Replaces whatever has this name, except a folder. Concurrent readers get the old or the new content.
  /// @return whether it was written; if not, nothing is left behind
  bool write(const std::string& name, std::string_view content);

 private:
  [[nodiscard]] int opened(bool make);
  [[nodiscard]] int open_or_make(int parent, bool make);
  void remove_leftovers() const;
  void say(CacheTrouble trouble, const std::string& message);
  void refuse_file(const std::string& name, const std::string& reason);

  std::shared_ptr<CacheFolder> parent_;  ///< null if the folder was opened by its path
  std::filesystem::path path_;
  Report report_;
  IsStale is_stale_;
  std::mutex mutex_;
  int descriptor_ = -1;
  bool is_refused_ = false;
  std::mutex said_mutex_;
  std::set<std::string> said_;  ///< reports already made, kept in the outermost folder
};

}  // namespace autopar
