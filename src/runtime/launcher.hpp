#pragma once

#include <optional>
#include <string>

namespace autopar::detail {

/// Who started this process as one of several.
struct Launcher {
  std::string variable;  ///< the environment variable that says so, e.g. "PMI_SIZE"
  int size = 0;          ///< how many processes it says; 0 = it does not say
};

/// Reads what mpiexec and srun leave in the environment; nothing if no launcher started this process.
[[nodiscard]] std::optional<Launcher> find_launcher();

}  // namespace autopar::detail
