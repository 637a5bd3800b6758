#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include <autopar/io/file_descriptor.hpp>

namespace autopar::tool {

/// Sees which of this host's ranks ends first. A launcher kills the others so soon that they may not have said so.
class RankWatch {
 public:
  /// @param job  as the ranks' environment names it
  explicit RankWatch(std::string job);

  /// Finds ranks that have begun since. Reads all of /proc: some milliseconds.
  void look();
  /// Readable when ranks have ended; `note_ends` then. -1: the system cannot tell.
  [[nodiscard]] int descriptor() const { return ends_.number(); }
  /// @param now  seconds
  void note_ends(double now);

  /// The first one that ended at that time or later.
  [[nodiscard]] std::optional<int> first_ended(double since) const;

 private:
  struct End {
    int rank = 0;
    double time = 0;
  };

  std::string job_;
  FileDescriptor ends_;
  std::map<::pid_t, FileDescriptor> processes_;
  std::vector<End> ended_;
};

}  // namespace autopar::tool
