#include <autopar/training/run.hpp>

#include <autopar/core/error.hpp>

namespace autopar::training {

namespace {

const RunOptions& checked(const RunOptions& options) {
  const auto require_positive = [](const char* name, std::int64_t count) {
    if (count < 1) throw InvalidArgument(std::string(name) + " = " + std::to_string(count) + ": it is at least 1");
  };
  require_positive("steps", options.steps);
  require_positive("save_every", options.save_every);
  return options;
}

}  // namespace

Run::Run(World& world, const RunOptions& options, const Load& load)
    : options_(checked(options)),
      device_(device(world)),
      folder_(world, {.path = options.folder, .start = options.start, .keep = options.keep}),
      place_(load.of(folder_)),
      log_(world, options.folder, {.steps = options.steps, .every = options.log_every, .work = options.work},
           place_.step),
      interrupt_(world) {
  if (place_.step >= options.steps) return;  // as the log has said
  log_.say((place_.step > 0 ? "going on after step " + std::to_string(place_.step) : std::string("starting")) +
           ", of " + std::to_string(options.steps));  // the first call of the model may plan for long
}

bool Run::next() {
  if (is_begun_) ++place_.step;
  is_begun_ = false;
  const bool is_asked = interrupt_.is_asked();
  const bool is_over = is_asked || place_.step >= options_.steps;
  if (place_.step > 0 && (is_over || place_.step % options_.save_every == 0)) save_();
  if (exit_status() != 0) {
    log_.say("interrupted after step " + std::to_string(place_.step) +
             (folder_.is_kept() ? ", which is saved: started again, the run goes on"
                                : ", and nothing is kept, as the run has no folder"));
  } else if (is_asked) {
    log_.say("stopped after step " + std::to_string(place_.step));
  }
  is_begun_ = !is_over;
  return is_begun_;
}

}  // namespace autopar::training
