#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace autopar::detail {

/// A file that appears under its name only when it is complete: written aside, synced, renamed.
/// All members throw std::system_error with the system's reason.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> data);
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path aside_;
  int descriptor_ = -1;
};

}  // namespace autopar::detail
