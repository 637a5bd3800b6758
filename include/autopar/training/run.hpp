#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include <c10/core/Device.h>

#include <autopar/io/step_page.hpp>
#include <autopar/runtime/world.hpp>
#include <autopar/torch/device.hpp>
#include <autopar/torch/session.hpp>
#include <autopar/training/batch_watch.hpp>
#include <autopar/training/goodput.hpp>
#include <autopar/training/interrupt.hpp>
#include <autopar/training/log.hpp>
#include <autopar/training/memory.hpp>
#include <autopar/training/run_folder.hpp>
#include <autopar/training/snapshots.hpp>

namespace autopar::training {

struct RunOptions {
  std::filesystem::path folder{};  ///< see RunFolder; empty: nothing is kept
  Start start = Start::kNewOrResume;
  std::int64_t steps = 1000;       ///< of the optimizer in all, those of earlier starts included
  std::int64_t save_every = 1000;  ///< steps between checkpoints, at least 1
  std::int64_t keep = 3;           ///< newest checkpoints that stay
  /// Checkpoints are written beside the training, from a copy in host memory; the last one before `next` returns false.
  bool save_in_background = true;
  /// Go on where another number of ranks makes steps of another size (see BatchWatch), instead of throwing.
  bool allow_batch_change = false;
  std::int64_t log_every = 10;  ///< steps between figures
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
/// rank 0's user how it gets on, at the end also where the time went. With Options::snapshot_every of the model, it
/// also makes snapshots in memory, goes on from the newest one if that is newer, and removes them at the end. What else
/// the program needs to go on is registered by `model->keep` before. Under `autopar run`, which starts a program again
/// after a fault, it goes on whatever `start` is. RunFolder, Snapshots, Log, Goodput, BatchWatch and Interrupt are its
/// parts, for loops that are different.
///
/// Members are collective, unless they say otherwise.
class Run {
 public:
  /// @param model       an AutoParallel; it and the optimizers outlive the Run
  /// @param optimizers  are attached to the model
  /// @throws InvalidArgument, on every rank, as RunFolder, and for counts that are not positive
  template <class Model, class... Optimizers>
  Run(World& world, const RunOptions& options, Model& model, Optimizers&... optimizers)
      : Run(world, options,
            Trained{.load = [&](RunFolder& folder) { return folder.load(model, optimizers...); },
                    .save = [&](RunFolder& folder, const Place& place) { folder.save(place, model, optimizers...); },
                    .save_best =
                        [&](RunFolder& folder, const Place& place, const Offer& offer) {
                          return folder.save_best(place, offer.metric, offer.value, model, offer.better);
                        },
                    .finish = [&](RunFolder& folder) { folder.finish(model); },
                    .load_snapshot = [&](const std::string& folder) { model->load(folder, optimizers...); },
                    .save_snapshot =
                        [&](const std::string& folder, const AcceptParts& accept) {
                          return model->save_parts(folder, {&optimizers...}, accept);
                        },
                    .snapshot_every = model->snapshot_every(),
                    .begin_step = [&] { model->begin_step(); },
                    .stats = [&]() -> const SessionStats& { return model->stats(); }}) {}
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  /// Ends the step under way: saves if it is time to. @return whether there is another
  /// @throws InvalidArgument, on every rank, if the step was of another size than before, see
  /// RunOptions::allow_batch_change
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
    const Goodput::Saving saving(goodput_);
    return trained_.save_best(folder_, {.step = place_.step + 1}, {metric, value, better});
  }

  /// Ends the run after this step, as of early stopping; any rank may ask. Not collective.
  void stop() { interrupt_.ask(); }
  /// 0 when all steps are done or `stop` was called, 128 + the signal's number after a signal. Not collective.
  [[nodiscard]] int exit_status() const { return interrupt_.exit_status(); }
  [[nodiscard]] const RunFolder& folder() const { return folder_; }

 private:
  struct Offer {
    std::string metric;
    double value;
    Better better;
  };
  /// The model and its optimizers.
  struct Trained {
    std::function<Place(RunFolder&)> load;
    std::function<void(RunFolder&, const Place&)> save;
    std::function<bool(RunFolder&, const Place&, const Offer&)> save_best;
    std::function<void(RunFolder&)> finish;
    std::function<void(const std::string&)> load_snapshot;
    Snapshots::Write save_snapshot;
    std::int64_t snapshot_every;
    std::function<void()> begin_step;
    std::function<const SessionStats&()> stats;
  };
  Run(World& world, const RunOptions& options, Trained trained);

  [[nodiscard]] Place load();
  void end_step();
  void measure(bool is_over);
  void snapshot();
  void save(bool is_over);
  void tell_end(bool is_asked);

  RunOptions options_;
  Trained trained_;
  c10::Device device_;
  Snapshots snapshots_;
  RunFolder folder_;
  Goodput goodput_;
  bool is_from_snapshot_ = false;  ///< and no step is made yet, so that the disk has less
  Place place_;
  BatchWatch batch_;
  Log log_;
  Interrupt interrupt_;
  std::optional<StepPage> page_;      ///< of the supervisor, on rank 0
  std::int64_t trained_samples_ = 0;  ///< before the step under way
  bool is_begun_ = false;             ///< a step is under way
};

}  // namespace autopar::training
