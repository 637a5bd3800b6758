#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <autopar/io/step_page.hpp>

#include "console.hpp"
#include "fault_report.hpp"
#include "launcher.hpp"
#include "output.hpp"
#include "process.hpp"
#include "rank_watch.hpp"
#include "signals.hpp"

namespace autopar::tool {

/// What became of a start.
struct StartOutcome {
  int launcher_status = 0;  ///< of mpiexec, 128 + the signal if it was killed
  bool is_cut_off = false;  ///< mpiexec did not end by itself
  FaultReport report;
  LastLines last_lines;
  std::optional<StepReached> first, last;  ///< steps that were reached; the first one within a second
};

/// What is started.
struct StartPlan {
  LauncherKind launcher = LauncherKind::kHydra;
  Command command;
  std::vector<std::string> environment;
  std::string job;             ///< as the environment names it
  std::filesystem::path step;  ///< the file in which rank 0 says how far it is
};

/// Runs mpiexec once: hands its output and signals on, and ends it where it goes on without a rank.
class OneStart {
 public:
  /// @throws InvalidArgument if mpiexec cannot be started
  OneStart(StartPlan plan, const Console& console, Signals& signals);

  /// Until mpiexec has ended and its output is written.
  [[nodiscard]] StartOutcome run();

 private:
  void blame();
  void take(std::string_view line);
  void hand_signals_on();
  void end_what_is_lost();
  void look_at_step();
  void look_early();
  void wait(int milliseconds);
  [[nodiscard]] int patience() const;
  [[nodiscard]] bool is_over();

  Signals& signals_;
  StartPlan plan_;
  std::optional<StepReached> step_before_;
  StartOutcome outcome_;
  RankWatch ranks_;
  Relay out_, err_;
  Process process_;
  int requests_ = 0;  ///< handed on
  double next_look_ = 0, look_pause_ = 0;
  std::optional<double> lost_since_, over_since_;  ///< seconds of a steady clock
  std::size_t forces_ = 0;                         ///< signals that mpiexec got for going on without a rank
};

}  // namespace autopar::tool
