#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fault_report.hpp"
#include "host_list.hpp"
#include "one_start.hpp"

namespace autopar::tool {

/// A line of starts.jsonl.
struct StartRecord {
  std::string job;
  Command command;
  int ranks = 0;
  std::vector<HostSlots> hosts;
  double begin = 0, end = 0;  ///< seconds since 1970
  int status = 0;
  std::string next;  ///< why the program was or was not restarted
};

/// What a run leaves in its folder: a line of starts.jsonl and a file start-0001.log for each start. Earlier runs in
/// the same folder keep theirs: numbers go on.
class Records {
 public:
  explicit Records(std::filesystem::path folder);

  /// @param start  from 1, of this run
  /// @throws ConfigError with the system's reason if they cannot be written
  void write(int start, const StartRecord& record, const StartOutcome& outcome) const;

 private:
  std::filesystem::path folder_;
  int earlier_ = 0;  ///< starts of earlier runs
};

}  // namespace autopar::tool
