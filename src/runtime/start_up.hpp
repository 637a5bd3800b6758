#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <autopar/core/units.hpp>
#include <autopar/io/file_descriptor.hpp>
#include <autopar/runtime/world.hpp>

#include "launcher.hpp"

namespace autopar::detail {

/// Which ranks of this host have begun to start, told without MPI: each holds a socket of the kernel's abstract names,
/// of its user, job and rank. Anybody may look for names; they carry nothing.
class RollCall {
 public:
  /// Answers for this process, while it lives.
  explicit RollCall(const Launcher& launcher);

  /// Whether the launcher says enough.
  [[nodiscard]] bool works() const { return static_cast<bool>(own_); }
  /// In ascending order; those of other hosts are missing, too. @pre works()
  [[nodiscard]] std::vector<int> missing() const;

 private:
  const std::string job_;
  const int size_;
  FileDescriptor own_;
};

/// The time that ranks have to find one another, until their first call is made; from AUTOPAR_START_TIMEOUT.
/// MPI waits without an end for ranks that do not come, so it is watched from outside.
class StartUp {
 public:
  StartUp(Seconds timeout, Launcher launcher);

  /// A warning comes after 10 s, or after half the limit.
  [[nodiscard]] StallLimits limits() const { return limits_; }
  /// Called again and again while MPI starts: warns once, and after the limit
  /// @throws TransportError
  void look();

 private:
  [[nodiscard]] std::string awaited(const std::vector<int>& missing) const;

  const Launcher launcher_;
  const StallLimits limits_;
  const RollCall roll_call_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  bool warned_ = false;
};

}  // namespace autopar::detail
