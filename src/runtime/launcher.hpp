#pragma once

#include <optional>
#include <string>

namespace autopar::detail {

/// Who started this process as one of several.
struct Launcher {
  std::string variable;  ///< the environment variable that says so, e.g. "PMI_SIZE"
  int size = 0;          ///< how many processes it says; 0 = it does not say
  int rank = -1;         ///< of this process; -1 = it does not say
  int local_size = 0;    ///< processes on this host; 0 = it does not say
  int lifeline = -1;     ///< hydra: this process's connection to it, at whose end it ends the job; -1 = none
  std::string job;       ///< the same for this job's processes on this host, and for no others; empty = not known
};

/// Reads what mpiexec and srun leave in the environment; nothing if no launcher started this process.
[[nodiscard]] std::optional<Launcher> find_launcher();

}  // namespace autopar::detail
