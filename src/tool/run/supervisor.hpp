#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "console.hpp"
#include "host_watch.hpp"
#include "launcher.hpp"
#include "one_start.hpp"
#include "records.hpp"
#include "settings.hpp"
#include "signals.hpp"
#include "starts.hpp"

namespace autopar::tool {

/// Starts a program under mpiexec, and again after a fault, until it is done.
class Supervisor {
 public:
  /// @param hosts  those of the hostfile that are used, in order, the spares last; empty: this host
  /// @pre the folder exists and is locked
  Supervisor(RunSettings settings, Launcher launcher, std::vector<HostSlots> hosts, Console console, Signals& signals);

  /// @return the program's status; 2, with a line that says why, if nothing was started
  [[nodiscard]] int run();

 private:
  /// Finds the hosts of the next start.
  [[nodiscard]] NextStart place();
  [[nodiscard]] StartOutcome start_once(StartRecord& record);
  [[nodiscard]] int status_of(const StartOutcome& outcome) const;
  [[nodiscard]] NextStart after(const StartOutcome& outcome, int status);
  void say_end(const StartOutcome& outcome, int status) const;
  /// What happens next, and why.
  [[nodiscard]] std::string words_of(NextStart next, const StartOutcome& outcome, int status) const;
  [[nodiscard]] std::string restart_words() const;
  void record(const StartRecord& record, const StartOutcome& outcome) const;
  [[nodiscard]] std::vector<std::string> environment(int start) const;

  RunSettings settings_;
  Launcher launcher_;
  std::filesystem::path folder_;
  Console console_;
  Signals& signals_;
  std::string job_;
  HostWatch watch_;
  std::vector<HostSlots> hosts_;  ///< of this start
  Starts starts_;
  Records records_;
};

}  // namespace autopar::tool
