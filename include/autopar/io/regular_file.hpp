#pragma once

#include <cstdint>
#include <filesystem>
#include <utility>

namespace autopar {

/// Whether the last component of a path may be a symbolic link.
enum class Links : std::uint8_t { kFollowed, kRefused };

/// A regular file, open for reading while the object lives, even if it is renamed or removed.
class RegularFile {
 public:
  RegularFile() = default;
  explicit RegularFile(int descriptor) : descriptor_(descriptor) {}
  RegularFile(RegularFile&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  RegularFile& operator=(RegularFile&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~RegularFile();

  /// For pread, fstat and the like; owned by this object.
  [[nodiscard]] int descriptor() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

/// Opens a regular file. Anything else is refused without opening it: a pipe would wait for its writer, and opening may
/// have effects on a device.
/// @throws ConfigError with the path and the system's reason, or what is there instead
[[nodiscard]] RegularFile open_regular(const std::filesystem::path& path, Links links = Links::kFollowed);

/// Checks before writing that a path is a regular file or does not exist. If it cannot be checked, the check passes,
/// and the writer reports why.
/// @throws ConfigError with the path, if something else is there
void require_regular(const std::filesystem::path& path);

}  // namespace autopar
