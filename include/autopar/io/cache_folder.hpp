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
  kRefused,  ///< what is there is damaged, or others could have written it
  kNotKept,  ///< nothing can be written, e.g. to a full disk
};

/// Files that spare a later process work, in a folder that its owner alone writes to. What is damaged or not trusted is
/// as if it were not there, and each trouble is said once; nothing is thrown.
///
///   auto cache = std::make_shared<CacheFolder>("/home/me/.cache/autopar", report);
///   CacheFolder kernels(cache, "kernels");
///   if (const auto code = kernels.read("gelu.kernel")) load(*code);
///   else kernels.write("gelu.kernel", compiled());
///
/// Against people: the folder is made with mode 0700, files with 0600. Folder and files must be the user's (effective
/// user) or root's, not writable by group or others, and no links. A folder of the user's that others may read is
/// closed to them. Against damage: a file begins with a line of format version, name, length and XXH3 of its content.
/// Files are written aside, synced and renamed; what a killed writer has left is removed when the folder is opened.
/// Any thread may use it.
class CacheFolder {
 public:
  /// @param message  names the path, the reason and the way out
  using Report = std::function<void(CacheTrouble trouble, const std::string& message)>;
  /// Whether a file of this name was written by an earlier version, to be removed.
  using IsStale = bool (*)(std::string_view name);

  /// Touches nothing: opened by the first read, made by the first write, folders above it too.
  explicit CacheFolder(std::filesystem::path path, Report report = {}, IsStale is_stale = nullptr);
  /// A folder in another one, whose reports are the other's.
  CacheFolder(std::shared_ptr<CacheFolder> parent, const std::string& name, IsStale is_stale = nullptr);
  ~CacheFolder();
  CacheFolder(const CacheFolder&) = delete;
  CacheFolder& operator=(const CacheFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// The content that was written; nothing where there is none, or it is refused.
  /// @param name  of a file; no path
  [[nodiscard]] std::optional<std::string> read(const std::string& name);
  /// Replaces what is there, whatever it is but a folder. Who reads meanwhile gets the old content or the new one.
  /// @return whether it is kept; if not, nothing is left behind
  bool write(const std::string& name, std::string_view content);

 private:
  [[nodiscard]] int opened(bool make);
  [[nodiscard]] int open_or_make(int parent, bool make);
  void remove_leftovers() const;
  void say(CacheTrouble trouble, const std::string& message);
  void refuse_file(const std::string& name, const std::string& reason);

  std::shared_ptr<CacheFolder> parent_;  ///< null: found by its path
  std::filesystem::path path_;
  Report report_;
  IsStale is_stale_;
  std::mutex mutex_;
  int descriptor_ = -1;
  bool is_refused_ = false;
  std::mutex said_mutex_;
  std::set<std::string> said_;  ///< of the outermost folder
};

}  // namespace autopar
