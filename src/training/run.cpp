#include <autopar/training/run.hpp>

#include <utility>

#include <autopar/core/error.hpp>
#include <autopar/io/config.hpp>
#include <autopar/io/supervision.hpp>
#include <autopar/io/wall_clock.hpp>

namespace autopar::training {

namespace {

/// What the user asked for, as a supervisor allows it.
RunOptions checked(RunOptions options) {
  const auto require_positive = [](const char* name, std::int64_t count) {
    if (count < 1) throw InvalidArgument(std::string(name) + " = " + std::to_string(count) + ": it is at least 1");
  };
  require_positive("steps", options.steps);
  require_positive("save_every", options.save_every);
  if (const auto supervised = supervision(process_environment())) {
    if (supervised->start > 1 && options.start == Start::kNew) options.start = Start::kNewOrResume;
    options.allow_batch_change = options.allow_batch_change || supervised->may_change_batch;
  }
  return options;
}

/// Where the run goes on.
Place newest_of(const Snapshots& snapshots, const RunFolder& folder) {
  const auto on_disk = folder.newest().value_or(Place());
  const auto& snapshot = snapshots.newest();
  return snapshot && snapshot->step > on_disk.step ? *snapshot : on_disk;
}

/// The page on which a supervisor reads how far the run is. Where it cannot be reached, it restarts all the same.
std::optional<StepPage> page_for_supervisor(World& world) {
  const auto supervised = supervision(process_environment());
  if (!supervised || world.rank() != 0) return std::nullopt;
  try {
    return StepPage(supervised->folder / kStepFile);
  } catch (const ConfigError& error) {
    world.logger(LogModule::kWorld).warn("autopar run does not see how far the run is: " + std::string(error.what()));
    return std::nullopt;
  }
}

}  // namespace

Run::Run(World& world, const RunOptions& options, Trained trained)
    : options_(checked(options)),
      trained_(std::move(trained)),
      device_(device(world)),
      snapshots_(world, trained_.snapshot_every, snapshot_place(world, trained_.snapshot_every, options.folder)),
      folder_(world, {.path = options.folder,
                      .start = options_.start,
                      .keep = options.keep,
                      .wait = !options.save_in_background,
                      .has_snapshot = snapshots_.newest().has_value()}),
      goodput_(world, newest_of(snapshots_, folder_).spent),
      place_(load()),
      batch_(place_.size, world.size(), options_.allow_batch_change),
      log_(world, options.folder, {.steps = options.steps, .every = options.log_every, .work = options.work},
           place_.step),
      interrupt_(world),
      page_(page_for_supervisor(world)),
      trained_samples_(trained_.stats().trained_samples) {
  if (place_.step >= options.steps) return;  // as the log has said
  const std::string from = is_from_snapshot_ ? ", from a snapshot in memory" : "";
  log_.say((place_.step > 0 ? "going on after step " + std::to_string(place_.step) + from : std::string("starting")) +
           ", of " + std::to_string(options.steps));  // the first call of the model may plan for long
}

Place Run::load() {
  const Goodput::Saving loading(goodput_);
  const auto on_disk = folder_.newest().value_or(Place());
  while (snapshots_.newest() && snapshots_.newest()->step > on_disk.step) {
    const auto place = *snapshots_.newest();
    try {
      trained_.load_snapshot(snapshots_.newest_folder().string());
      is_from_snapshot_ = true;
      return place;
    } catch (const CheckpointError& error) {
      snapshots_.skip_newest(error.what());
    }
  }
  if (options_.start == Start::kResume && !folder_.newest())
    throw InvalidArgument("there is no complete checkpoint in " + options_.folder.string() +
                          " to go on from, and no snapshot that can be loaded");
  return trained_.load(folder_);
}

bool Run::next() {
  if (std::exchange(is_begun_, false)) end_step();
  const bool is_asked = interrupt_.is_asked();
  const bool is_over = is_asked || place_.step >= options_.steps;
  if (goodput_.has_steps() && !is_over && snapshots_.is_due(place_.step)) snapshot();
  if (place_.step > 0 && (is_over || place_.step % options_.save_every == 0)) save(is_over);
  if (is_over) {
    snapshots_.remove();
    tell_end(is_asked);
  } else {
    trained_.begin_step();
    is_begun_ = true;
  }
  return is_begun_;
}

void Run::end_step() {
  ++place_.step;
  is_from_snapshot_ = false;
  const auto samples = trained_.stats().trained_samples;
  const auto said = batch_.see(samples - std::exchange(trained_samples_, samples));
  if (!said.empty()) log_.say(said);
  goodput_.end_step();
  if (page_) page_->reach({place_.step, seconds_since_1970()});
}

void Run::measure(bool is_over) {
  const auto& stats = trained_.stats();
  place_.size = batch_.size();
  place_.spent = goodput_.spent(stats.planning, stats.preparing);
  place_.spent.has_ended = is_over;
}

void Run::snapshot() {
  measure(false);
  const Goodput::Saving saving(goodput_);
  snapshots_.save(place_, trained_.save_snapshot);
}

// A model that has not made a step since it was loaded cannot be saved yet: what it was loaded from can be copied.
void Run::save(bool is_over) {
  if (is_from_snapshot_ && !is_over) return;
  measure(is_over);
  log_.record(place_.step, goodput_.figures_of(place_.spent));
  const Goodput::Saving saving(goodput_);
  if (is_from_snapshot_)
    folder_.save_copy(place_, snapshots_.newest_folder());
  else
    trained_.save(folder_, place_);
  if (is_over) trained_.finish(folder_);
}

void Run::tell_end(bool is_asked) {
  if (exit_status() != 0) {
    log_.say("interrupted after step " + std::to_string(place_.step) +
             (folder_.is_kept() ? ", which is saved: started again, the run goes on"
                                : ", and nothing is kept, as the run has no folder"));
  } else if (is_asked) {
    log_.say("stopped after step " + std::to_string(place_.step));
  }
  if (!goodput_.has_steps()) return;
  const auto& stats = trained_.stats();
  log_.say(goodput_.text_of(goodput_.spent(stats.planning, stats.preparing)));
}

}  // namespace autopar::training
