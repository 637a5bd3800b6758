#pragma once

#include <optional>
#include <string>
#include <vector>

namespace autopar::tool {

/// The command line of `autopar run`.
struct RunSettings {
  int ranks = 0;
  std::optional<int> min_ranks;  ///< fewest that a restart may have; none: as many as `ranks`
  int spares = 0;                ///< slots of the hostfile that are kept unused at first
  int max_restarts = 10;
  std::string hostfile;  ///< empty: this host
  std::string folder = "autopar-run";
  bool may_change_batch = false;
  std::string mpiexec = "mpiexec";
  std::vector<std::string> mpiexec_arguments;
  std::vector<std::string> program;  ///< what stands after `--`

  [[nodiscard]] int fewest() const { return min_ranks.value_or(ranks); }
};

}  // namespace autopar::tool
