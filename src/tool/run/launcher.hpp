#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace autopar::tool {

using Command = std::vector<std::string>;  ///< a program and its arguments

/// The process managers whose options are known.
enum class LauncherKind : std::uint8_t {
  kHydra,  ///< of MPICH, MVAPICH and Intel MPI
  kOpenMpi,
};

/// By what `mpiexec --version` prints.
[[nodiscard]] std::optional<LauncherKind> launcher_kind(std::string_view version);

/// What makes it ask the ranks for the end, so that they have time to save. Open MPI kills them some seconds after
/// SIGINT and SIGTERM, and hands SIGUSR1 on.
[[nodiscard]] int first_signal(LauncherKind kind, int asked);

/// An mpiexec with the options that the user gave it.
struct Launcher {
  LauncherKind kind = LauncherKind::kHydra;
  std::string program = "mpiexec";
  std::vector<std::string> arguments;

  /// @param hostfile  of hostfile_text; empty: as the launcher itself chooses
  [[nodiscard]] Command job(int ranks, const std::string& hostfile, const Command& what) const;
  /// One process on that host alone.
  [[nodiscard]] Command on_host(const std::string& host, const Command& what) const;
};

}  // namespace autopar::tool
