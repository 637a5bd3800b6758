#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include <autopar/runtime/world.hpp>
#include <autopar/training/metrics.hpp>
#include <autopar/training/progress.hpp>
#include <autopar/training/values.hpp>

namespace autopar::training {

/// What a step is to a program.
struct Work {
  std::string unit = "steps";             ///< "tokens"
  std::int64_t units = 1;                 ///< of a step, all ranks together
  double flops = 0;                       ///< of a step's matrix products, forward and backward
  std::optional<double> peak_flops = {};  ///< of a device, see peak_flops.hpp; nothing: MFU is not shown
};

struct LogOptions {
  std::int64_t steps = 0;   ///< in all
  std::int64_t every = 10;  ///< steps between figures, at least 1
  Work work{};
};

/// Tells how a training gets on: a line for people, metrics for files.
class Log {
 public:
  /// @param folder  of the metrics; empty: there are none
  /// @param done    steps before this start
  /// @throws InvalidArgument if `options.every` is not positive
  Log(World& world, const std::filesystem::path& folder, const LogOptions& options, std::int64_t done);

  /// Whether figures of this step are wanted: reading them costs a wait for the device. @param step  counted from 1
  [[nodiscard]] bool is_due(std::int64_t step) const {
    return step % options_.every == 0 || step == options_.steps || step == first_;
  }

  /// Figures of a step that is due: what is given, and speed, MFU, memory of the fullest rank. Collective.
  /// @param values  the loss first, the learning rate
  /// @param memory  this rank's, in bytes
  void step(std::int64_t step, const Values& values, std::int64_t memory);

  /// Figures that come now and then, on a line of their own: of a validation.
  void write(std::int64_t step, const Values& values);
  /// Figures for the files alone.
  void record(std::int64_t step, const Values& values);
  void say(const std::string& text) { progress_.say(text); }

 private:
  World& world_;
  LogOptions options_;
  std::int64_t shown_, first_;
  Progress progress_;
  std::optional<Metrics> metrics_;  ///< on rank 0 of a run that is kept
};

}  // namespace autopar::training
