#pragma once

#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "launcher.hpp"
#include "signals.hpp"

namespace autopar::tool {

/// A child process in a process group of its own. It gets SIGTERM when this process ends, however that does. Standard
/// input is /dev/null.
class Process {
 public:
  /// @param environment  all of it, "NAME=value"
  /// @param out, err     become its standard output and error
  /// @throws InvalidArgument if the program cannot be started, with the system's reason
  Process(const Command& command, const std::vector<std::string>& environment, int out, int err,
          const Signals& signals);
  /// Kills what is left of its group.
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  /// As waitpid has it; nothing while it runs.
  [[nodiscard]] std::optional<int> wait_status();

  void send(int signal) const;           ///< to the process alone
  void send_to_group(int signal) const;  ///< to all of its group, while the process has not been waited for

 private:
  ::pid_t id_ = 0;
  std::optional<int> status_;
};

/// All variables of this process, "NAME=value": what a child gets, with changes.
[[nodiscard]] std::vector<std::string> inherited_environment();

inline constexpr int kShellSignal = 128;  ///< what a shell adds to the signal that killed a process

/// The exit status that a shell would show: 128 + the signal for a process that was killed.
[[nodiscard]] int shell_status(int wait_status);

}  // namespace autopar::tool
