#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher.hpp"

namespace autopar::tool {

/// A host and how many ranks it may run.
struct HostSlots {
  std::string host;
  int slots = 1;

  friend bool operator==(const HostSlots&, const HostSlots&) = default;
};

inline constexpr int kMostSlots = 1 << 20;  ///< of a host, and of all hosts

/// Reads lines `host`, `host:slots` and `host slots=4`; `#` begins a comment. A host that is named again gets the sum.
/// @param file  its name in messages
/// @throws ConfigError with file and line, or if no host is named
[[nodiscard]] std::vector<HostSlots> parse_hostfile(std::string_view text, const std::string& file);

[[nodiscard]] int slots_of(const std::vector<HostSlots>& hosts);

/// The first `count` slots in order, or all if there are fewer. Hosts without a slot are left out.
[[nodiscard]] std::vector<HostSlots> first_slots(const std::vector<HostSlots>& hosts, int count);

/// As a hostfile of that launcher.
[[nodiscard]] std::string hostfile_text(const std::vector<HostSlots>& hosts, LauncherKind kind);

/// "node1 (4), node2 (2)"
[[nodiscard]] std::string described(const std::vector<HostSlots>& hosts);

}  // namespace autopar::tool
