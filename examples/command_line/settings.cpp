#include "command_line/settings.hpp"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <autopar/core/error.hpp>
#include <autopar/io/cluster_file.hpp>
#include <autopar/io/file.hpp>
#include <autopar/plan/option_text.hpp>
#include <autopar/training/from_first.hpp>
#include <autopar/training/schedules.hpp>

#include "command_line/command_line.hpp"

namespace command_line {

namespace training = autopar::training;

namespace {

/// How --decay is written.
double factor_of(const std::string& decay, std::int64_t step, std::int64_t steps, std::int64_t warmup, double lowest) {
  if (decay == "linear") return training::linear_decay(step, steps, warmup, lowest);
  if (decay == "cosine") return training::cosine_decay(step, steps, warmup, lowest);
  if (decay == "root") return training::root_decay(step, steps, warmup);
  if (decay == "constant") return training::warmed_up(step, warmup);
  throw autopar::InvalidArgument("no decay of the learning rate is called '" + decay +
                                 "'; there are constant, linear, cosine and root");
}

void add_training(CLI::App& app, Settings& settings) {
  app.add_option("--steps", settings.steps, "steps of the optimizer in all, also of earlier starts")
      ->check(CLI::PositiveNumber);
  app.add_option("--batch", settings.batch, "samples of a step, all ranks together")->check(CLI::PositiveNumber);
  app.add_option("--accumulate", settings.accumulate, "calls that a step's samples come in, one after the other")
      ->check(CLI::PositiveNumber);
  app.add_option("--lr", settings.learning_rate, "the highest learning rate")->check(CLI::PositiveNumber);
  app.add_option("--warmup", settings.warmup, "steps in which the rate rises")->check(CLI::NonNegativeNumber);
  app.add_option("--decay", settings.decay, "how the rate falls after these")
      ->check(CLI::IsMember({"constant", "linear", "cosine", "root"}));
  app.add_option("--lowest-rate", settings.lowest_rate, "at the end, as a part of the highest")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--weight-decay", settings.weight_decay)->check(CLI::NonNegativeNumber);
  app.add_option("--clip", settings.clip, "largest norm of all gradients; 0 = as they are")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--seed", settings.seed, "of weights, order of data and dropout");
  app.add_flag("--fp64", settings.fp64, "train in double precision");
}

void add_files(CLI::App& app, Settings& settings) {
  app.add_option("--out", settings.out,
                 "the run's folder: checkpoints, metrics.jsonl, TensorBoard's events; without it nothing is kept");
  app.add_option("--save-every", settings.save_every, "steps between checkpoints")->check(CLI::PositiveNumber);
  app.add_option("--keep", settings.keep, "newest checkpoints that stay")->check(CLI::PositiveNumber);
  app.add_option("--log-every", settings.log_every, "steps between figures")->check(CLI::PositiveNumber);
  app.add_flag("--resume", settings.resume,
               "go on from the newest checkpoint in --out, with the options that the run was started with, but for "
               "those given now; without a checkpoint, start");
}

void add_plan(CLI::App& app, Settings& settings) {
  auto& options = settings.options;
  const auto group = "The plan (unset: autopar's choice; all options: docs/options.md, as AUTOPAR_* or autopar.toml)";
  add_choice(app, "--precision", options.precision,
             "of matrix products, as in libtorch's autocast: tf32, bf16, fp16; or of all: bf16-compute")
      ->group(group);
  app.add_option("--stages", options.stages, "of the pipeline")->group(group);
  app.add_option("--replicas", options.replicas, "of each stage, or of all")->delimiter(',')->group(group);
  app.add_option("--microbatches", options.microbatches)->group(group);
  app.add_option("--tensor-parallel", options.tensor_parallel, "shards of each replica; 1 = none")->group(group);
  app.add_option("--zero", options.zero, "level of ZeRO among replicas")->group(group);
  app.add_option("--cluster", options.cluster_file, "plan for this cluster instead of the devices at hand")
      ->group(group);
  app.add_flag("--plan-only", options.plan_only, "print the plan and stop")->group(group);
}

/// Options of this start alone.
bool is_momentary(const std::string& name) { return name == "help" || name == "resume" || name == "plan-only"; }

nlohmann::json given_options(const CLI::App& app) {
  auto given = nlohmann::json::object();
  for (const auto* option : app.get_options([](const CLI::Option* each) { return each->count() > 0; })) {
    const auto name = option->get_single_name();
    if (!is_momentary(name) && option->get_configurable()) given[name] = option->results();
  }
  return given;
}

/// Words of a command line for what the run was given at its start and is not given now.
std::vector<std::string> earlier_words(const CLI::App& app, const nlohmann::json& earlier) {
  std::vector<std::string> words;
  for (const auto& [name, values] : earlier.items()) {
    const auto* option = app.get_option_no_throw("--" + name);
    if (option == nullptr || option->count() > 0) continue;
    const bool is_flag = option->get_items_expected_max() == 0;
    for (const auto& value : values) words.push_back("--" + name + (is_flag ? "" : "=" + value.get<std::string>()));
  }
  return words;
}

nlohmann::json settings_of_run(autopar::World& world, const std::string& folder) {
  if (folder.empty()) throw autopar::InvalidArgument("--resume needs --out, the folder of the run to go on with");
  return nlohmann::json::parse(training::from_first(world, "settings of the run", [&] {
    const auto file = training::settings_file(folder);
    return std::filesystem::exists(file) ? autopar::read_text_file(file) : std::string("{}");  // none: it starts
  }));
}

void require_consistent(const Settings& settings) {
  if (settings.fp64 && settings.options.precision != autopar::Precision::kModule) {
    throw autopar::InvalidArgument("--fp64 computes in double precision, --precision " +
                                   autopar::option_text(settings.options.precision) + " in less: leave one out");
  }
  if (settings.batch % settings.accumulate != 0) {
    throw autopar::InvalidArgument("--batch " + std::to_string(settings.batch) + " cannot come in --accumulate " +
                                   std::to_string(settings.accumulate) + " equal calls");
  }
}

/// A process stands for one device of the cluster, and brings as much as that would.
void plan_for_cluster(Settings& settings, const autopar::World& world) {
  if (!settings.options.plan_only || settings.options.cluster_file.empty()) return;
  const auto devices = autopar::read_cluster(settings.options.cluster_file).devices;
  if (settings.batch % devices != 0) {
    throw autopar::InvalidArgument("--batch " + std::to_string(settings.batch) + " cannot be shared equally by the " +
                                   std::to_string(devices) + " devices of " + settings.options.cluster_file);
  }
  settings.batch = settings.batch / devices * world.size();
}

}  // namespace

double Settings::rate(std::int64_t step) const {
  return learning_rate * factor_of(decay, step, steps, warmup, lowest_rate);
}

training::RunFolderOptions Settings::folder() const {
  return {.path = out,
          .start = resume ? training::Start::kNewOrResume : training::Start::kNew,
          .keep = keep,
          .settings = given};
}

training::LogOptions Settings::log(const training::Work& work) const {
  return {.steps = steps, .every = log_every, .work = work};
}

void add_options(CLI::App& app, Settings& settings) {
  app.option_defaults()->always_capture_default();
  add_training(app, settings);
  add_files(app, settings);
  add_plan(app, settings);
}

std::optional<int> parse(CLI::App& app, Settings& settings, autopar::World& world, int argc, char** argv) {
  try {
    std::vector<std::string> words(argv + 1, argv + argc);
    const auto parse_words = [&] { app.parse(std::vector<std::string>(words.rbegin(), words.rend())); };
    parse_words();
    if (settings.resume) {
      const auto more = earlier_words(app, settings_of_run(world, settings.out));
      words.insert(words.end(), more.begin(), more.end());
      parse_words();
    }
  } catch (const CLI::ParseError& error) {
    return status_after(app, error, world.rank() == 0);
  }
  settings.given = given_options(app).dump(2) + "\n";
  settings.options.gradient_accumulation = settings.options.gradient_accumulation || settings.accumulate > 1;
  if (settings.options.plan_only) settings.out.clear();  // nothing is kept
  plan_for_cluster(settings, world);
  require_consistent(settings);
  return std::nullopt;
}

}  // namespace command_line
