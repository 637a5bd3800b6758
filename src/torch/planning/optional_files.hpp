#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>

#include <autopar/runtime/log.hpp>

namespace autopar::planning {

/// Files that training can do without: plans, reports, graphs, profiles, costs, traces. What cannot be written is a
/// warning, once for each option, and training goes on.
class OptionalFiles {
 public:
  explicit OptionalFiles(Logger log) : log_(std::move(log)) {}

  /// @param option  that names the file
  /// @param write   throws ConfigError if it cannot be written; other exceptions pass
  /// @return whether it is written
  bool write(const std::string& option, const std::function<void()>& write);

 private:
  Logger log_;
  std::set<std::string> failed_;
};

}  // namespace autopar::planning
