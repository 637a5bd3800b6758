#pragma once

#include <cstdint>
#include <filesystem>
#include <utility>

namespace autopar {

/// Whether the last part of a path may be a symbolic link.
enum class Links : std::uint8_t { kFollowed, kRefused };

/// A regular file that is open for reading while this lives, whatever becomes of its name.
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

  /// For pread, fstat and the like; it stays this object's.
  [[nodiscard]] int descriptor() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

/// Opens a file that must be a regular one. Anything else is refused by name without being opened: a pipe would wait
/// for its writer, a device may act on being opened.
/// @throws ConfigError naming the path: the system's reason, or what is there instead
[[nodiscard]] RegularFile open_regular(const std::filesystem::path& path, Links links = Links::kFollowed);

/// For who is about to write a file there. What cannot be looked at is left to the writer, who learns why.
/// @throws ConfigError naming the path, if what is there is no regular file
void require_regular(const std::filesystem::path& path);

}  // namespace autopar
