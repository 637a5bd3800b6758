#pragma once

#include <string>

#include <autopar/training/values.hpp>

namespace autopar::training {

/// Where the time of a run went, in seconds, all its starts together: means over the ranks. What is left is goodput,
/// the time of steps that count.
struct TimeSpent {
  double total = 0;       ///< since the first start; not between a start that ended by itself and the next
  double planning = 0;    ///< capture, plan and deployment
  double saving = 0;      ///< until a save or load lets the training go on
  double restarting = 0;  ///< from the newest checkpoint before a fault until the next start: steps that are made again
  double data = 0;        ///< from the begin of a step until its first call, while a device has nothing to do
  double waiting = 0;     ///< for the slowest rank

  double until = 0;        ///< when this was, in seconds since 1970; 0: not known
  bool has_ended = false;  ///< by itself: what follows is a pause, and no restart

  /// Seconds that went into steps.
  [[nodiscard]] double useful() const;
  /// The share of it in `total`, from 0 to 1.
  [[nodiscard]] double goodput() const { return total > 0 ? useful() / total : 0; }

  friend bool operator==(const TimeSpent&, const TimeSpent&) = default;
};

/// "goodput 93.1 % of 2 h 10 min; saving 0.4 %, waiting 3.0 % for rank 2 on node7": shares of 0.05 % and more.
/// @param slowest  the rank that others waited for
[[nodiscard]] std::string to_text(const TimeSpent& spent, const std::string& slowest);
/// The shares as figures: "goodput", "time_planning", ….
[[nodiscard]] Values figures_of(const TimeSpent& spent);

}  // namespace autopar::training
