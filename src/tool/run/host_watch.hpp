#pragma once

#include <string>
#include <vector>

#include "host_list.hpp"
#include "launcher.hpp"
#include "signals.hpp"

namespace autopar::tool {

/// What is known of a host.
struct HostState {
  HostSlots host;
  int devices_at_first = 0;  ///< 0: none, so that none can be missing
  int devices = 0;           ///< now
  bool answers = true;
};

/// The slots that a host has now: none if it does not answer, and no more than devices where some are gone.
[[nodiscard]] int usable_slots(const HostState& state);

/// "host node2 does not answer"; empty: it is whole.
[[nodiscard]] std::string loss_of(const HostState& state);

/// The hosts of a run, in order, and which of them are there.
class HostWatch {
 public:
  /// @param hosts  those in use and the spares; empty: this host, with `slots`
  HostWatch(std::vector<HostSlots> hosts, int slots, Launcher launcher);

  /// Asks all hosts side by side whether they answer and, except the first time, how many of their devices are left.
  /// Takes some 10 s where one does not answer. @pre environment: all of a child's
  void look(const std::vector<std::string>& environment, Signals& signals);

  [[nodiscard]] std::vector<HostSlots> usable() const;
  [[nodiscard]] std::vector<std::string> losses() const;
  /// What the launcher said of hosts that do not answer: its first line, or nothing.
  [[nodiscard]] const std::string& complaint() const { return complaint_; }
  /// Whether a hostfile named the hosts.
  [[nodiscard]] bool are_named() const { return are_named_; }

  /// Removes a folder on all hosts that answer, other than this one.
  void remove_elsewhere(const std::string& folder, const std::vector<std::string>& environment, Signals& signals) const;

 private:
  [[nodiscard]] Command on(const HostState& state, const Command& what) const;

  std::vector<HostState> states_;
  Launcher launcher_;
  std::string complaint_;
  bool are_named_, has_looked_ = false;
};

}  // namespace autopar::tool
