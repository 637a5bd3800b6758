#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace autopar::detail {

/// The process that a lock's file names.
struct LockHolder {
  bool is_lease = false;
  std::string host;
  std::string system;  ///< where process ids mean the same: boot and namespace; empty: unknown
  std::int64_t process = 0;
  std::int64_t started = 0;  ///< of the process, in ticks since boot
  std::string since;         ///< of the lock, UTC
};

[[nodiscard]] LockHolder this_process(bool is_lease);
/// Whether that process certainly ended: it was of this system, and there is none, or a later one, of its id.
[[nodiscard]] bool is_gone(const LockHolder& holder);
/// "process 12 on host node7, since 2026-11-28T23:55:00Z"
[[nodiscard]] std::string described(const LockHolder& holder);

[[nodiscard]] std::string to_json(const LockHolder& holder);
/// Nothing for text that `to_json` did not write.
[[nodiscard]] std::optional<LockHolder> parse_lock_holder(std::string_view json);

}  // namespace autopar::detail
