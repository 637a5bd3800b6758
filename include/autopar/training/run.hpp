#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include <c10/core/Device.h>

#include <autopar/runtime/world.hpp>
#include <autopar/torch/device.hpp>
#include <autopar/training/interrupt.hpp>
#include <autopar/training/log.hpp>
#include <autopar/training/memory.hpp>
#include <autopar/training/run_folder.hpp>

namespace autopar::training {

struct RunOptions {
  std::filesystem::path folder{};  ///< see RunFolder; empty: nothing is kept
  Start start = Start::kNewOrResume;
  std::int64_t steps = 1000;       ///< of the optimizer in all, those of earlier starts included
  std::int64_t save_every = 1000;  ///< steps between checkpoints, at least 1
  std::int64_t keep = 3;           ///< newest checkpoints that stay
  std::int64_t log_every = 10;     ///< steps between figures
  Work work{};
};

/// The steps of a training, from where its folder stands to its end, or to a signal:
///
///     training::Run run(world, {.folder = "run", .steps = 10'000}, model, optimizer);   // starts or goes on
///     while (run.next()) {
///       …                                                       // zero_grad, model(…), backward, step
///       if (run.is_due()) run.log({{"loss", loss.item<double>()}});
///     }
///     return run.exit_status();                                 // 130 after Ctrl-C: to be started again
///
/// It loads the newest checkpoint, saves each `save_every` steps, at the end and after a signal to any rank, and tells
/// rank 0's user how it gets on. What else the program needs to go on is registered by `model->keep` before.
/// RunFolder, Log and Interrupt are its parts, for loops that are different.
///
/// Members are collective, unless they say otherwise.
class Run {
 public:
  /// @param model       an AutoParallel; it and the optimizers outlive the Run
  /// @param optimizers  are attached to the model
  /// @throws InvalidArgument, on every rank, as RunFolder, and for counts that are not positive
  template <class Model, class... Optimizers>
  Run(World& world, const RunOptions& options, Model& model, Optimizers&... optimizers)
      : Run(world, options, Load{[&](RunFolder& folder) { return folder.load(model, optimizers...); }}) {
    save_ = [&] { folder_.save(place_, model, optimizers...); };
    save_best_ = [&](const std::string& metric, double value, Better better) {
      return folder_.save_best({.step = place_.step + 1}, metric, value, model, better);
    };
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  /// Ends the step under way: saves if it is time to. @return whether there is another
  [[nodiscard]] bool next();

  /// The step under way, from 0. Not collective.
  [[nodiscard]] std::int64_t step() const { return place_.step; }
  /// Whether figures of this step are wanted: reading them costs a wait for the device. Not collective.
  [[nodiscard]] bool is_due() const { return log_.is_due(place_.step + 1); }
  /// Whether this is each `steps`-th step, or the last, as for a validation. Not collective.
  [[nodiscard]] bool is_each(std::int64_t steps) const {
    return (place_.step + 1) % steps == 0 || place_.step + 1 == options_.steps;
  }

  /// Figures of a step that is due, shown and written with speed and memory.
  void log(const Values& values) { log_.step(place_.step + 1, values, peak_memory(device_)); }
  /// Figures that come now and then, on a line of their own: of a validation. Not collective.
  void note(const Values& values) { log_.write(place_.step + 1, values); }
  /// As RunFolder::save_best, of the step under way. @return whether it is the best
  bool save_best(const std::string& metric, double value, Better better = Better::kHigher) {
    return save_best_(metric, value, better);
  }

  /// Ends the run after this step, as of early stopping; any rank may ask. Not collective.
  void stop() { interrupt_.ask(); }
  /// 0 when all steps are done or `stop` was called, 128 + the signal's number after a signal. Not collective.
  [[nodiscard]] int exit_status() const { return interrupt_.exit_status(); }
  [[nodiscard]] const RunFolder& folder() const { return folder_; }

 private:
  struct Load {  // a type of its own, that no model converts to
    std::function<Place(RunFolder&)> of;
  };
  Run(World& world, const RunOptions& options, const Load& load);

  RunOptions options_;
  c10::Device device_;
  RunFolder folder_;
  Place place_;
  Log log_;
  Interrupt interrupt_;
  std::function<void()> save_;
  std::function<bool(const std::string&, double, Better)> save_best_;
  bool is_begun_ = false;  ///< a step is under way
};

}  // namespace autopar::training
