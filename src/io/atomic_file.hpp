#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include <sys/stat.h>

namespace autopar::detail {

/// Between a file's name and the letters that make its unfinished copy's name unique.
inline constexpr const char* kPartialMark = ".partial-";
inline constexpr std::size_t kPartialLetters = 6;
[[nodiscard]] std::string random_ending();

/// Makes a folder and its parents, and syncs each one's name, so that a power cut does not take files with a folder.
/// @throws std::system_error with the system's reason
void make_folders(const std::filesystem::path& folder);

/// Where a file's name leads.
struct Destination {
  std::filesystem::path path;  ///< behind symbolic links
  bool is_replaced = true;     ///< a regular file, or none yet; false: a device, a pipe, an open descriptor, a folder
  std::optional<struct stat> there;  ///< what is there
  bool is_descriptor = false;        ///< open already, here or in another process: /dev/stdin
};

/// @throws std::system_error for links in a circle and folders that cannot be searched
[[nodiscard]] Destination destination_of(const std::filesystem::path& path);

/// A file that appears under its name only when it is complete: written aside, synced, renamed. Links stay links. A
/// file that is there keeps its mode and, as far as the system allows, its owner; one that may not be written is not
/// replaced; a new one has the mode that the umask leaves. Devices, pipes and open descriptors (/dev/stdout) are
/// written to as they are; a pipe that nobody reads is an error. Until it is complete it is locked (flock), so that
/// `remove_partial_files` can tell it from one whose writer was killed. All members throw std::system_error with the
/// system's reason.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> data);
  /// Replaces bytes that are written already.
  void rewrite(std::int64_t position, std::span<const std::byte> data);
  void commit();

 private:
  void open_aside();

  Destination to_;
  std::filesystem::path aside_;  ///< empty: there is none
  int descriptor_ = -1;
};

}  // namespace autopar::detail
