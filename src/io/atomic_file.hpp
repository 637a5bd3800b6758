#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace autopar::detail {

/// Between a file's name and the letters that make its unfinished copy's name unique.
inline constexpr const char* kPartialMark = ".partial-";
inline constexpr std::size_t kPartialLetters = 6;

/// A file that appears under its name only when it is complete: written aside, synced, renamed. Until then it is locked
/// (flock), so that `remove_partial_files` can tell it from one whose writer was killed.
/// All members throw std::system_error with the system's reason.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> data);
  /// Replaces bytes that are written already.
  void rewrite(std::int64_t position, std::span<const std::byte> data);
  void commit();

 private:
  void open_aside();

  std::filesystem::path path_;
  std::filesystem::path aside_;
  int descriptor_ = -1;
};

}  // namespace autopar::detail
