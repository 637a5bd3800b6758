#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <autopar/runtime/world.hpp>

#include "training/metrics.hpp"
#include "training/progress.hpp"
#include "training/run_folder.hpp"
#include "training/settings.hpp"
#include "training/values.hpp"

namespace training {

/// What a step is to a program.
struct Work {
  std::string unit;                       ///< "tokens"
  std::int64_t units = 0;                 ///< of a step
  double flops = 0;                       ///< of a step's matrix products, forward and backward
  std::optional<double> peak_flops = {};  ///< of a device, see peak_flops.hpp; nothing: MFU is not shown
};

/// Tells how a training gets on: a line for people, metrics for files.
class Log {
 public:
  /// @param done  steps before this start
  Log(autopar::World& world, const Settings& settings, const RunFolder& folder, const Work& work, std::int64_t done);

  /// Whether figures of this step are wanted: reading them costs a wait for the device. @param step  counted from 1
  [[nodiscard]] bool is_due(std::int64_t step) const { return step % log_every_ == 0 || step == steps_ || step == 1; }

  /// Figures of a step that is due: what is given, and speed, MFU, memory of the fullest rank. Collective.
  /// @param values  the loss first, the learning rate
  /// @param memory  this rank's, in bytes
  void step(std::int64_t step, const Values& values, std::int64_t memory);

  /// Figures that come now and then, on a line of their own: of a validation.
  void write(std::int64_t step, const Values& values);
  void say(const std::string& text) { progress_.say(text); }

 private:
  autopar::World& world_;
  Work work_;
  std::int64_t steps_, log_every_, shown_;
  Progress progress_;
  std::optional<Metrics> metrics_;  ///< on rank 0 of a run that is kept
};

}  // namespace training
