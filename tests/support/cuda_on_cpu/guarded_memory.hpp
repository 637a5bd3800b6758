#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace cuda_on_cpu {

/// Bytes between pages that nobody may touch, filled with 0xff (NaN in every floating type). They end where the upper
/// page begins, but for what packs of 16 bytes need to begin at one.
class GuardedMemory {
 public:
  GuardedMemory(std::string name, std::size_t bytes);
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;
  ~GuardedMemory();

  [[nodiscard]] std::byte* begin() const { return begin_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] const std::string& name() const { return name_; }

  /// From now on a write is a fault.
  void make_read_only() const;
  /// @throws autopar::Error if bytes before or behind have been written
  void check_surroundings() const;
  /// "3 bytes behind the end of 'x'", if the address is in one of the pages or read-only.
  [[nodiscard]] std::optional<std::string> describe(const void* address) const;

 private:
  std::string name_;
  std::size_t bytes_;
  std::byte* pages_ = nullptr;  ///< a page, the body, a page
  std::size_t body_ = 0;
  std::byte* begin_ = nullptr;
};

}  // namespace cuda_on_cpu
