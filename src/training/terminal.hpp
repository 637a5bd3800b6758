#pragma once

#include <filesystem>
#include <string>

#include <sys/types.h>

namespace autopar::training {

/// Where the standard output of the launcher (mpiexec, mpirun) goes that started a process on this host: "/dev/pts/0",
/// or a file. Empty if no launcher is among the process's ancestors, or the system does not say.
/// @param proc  "/proc", or for tests a folder like it
[[nodiscard]] std::string launcher_output(const std::filesystem::path& proc, pid_t process);

/// Whether a person looks at what this process writes to its standard output.
[[nodiscard]] bool is_seen_on_terminal();

}  // namespace autopar::training
