#include "settings.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include <CLI/CLI.hpp>

#include <autopar/core/error.hpp>
#include <autopar/training/schedules.hpp>

#include "command_line/command_line.hpp"

Settings::Settings() {
  steps = 0;
  batch = 256;
  learning_rate = 0.1;
  decay = "step";
  lowest_rate = 0;
  weight_decay = 1e-4;
  clip = 0;
}

void Settings::count_steps(std::int64_t batches_of_epoch) {
  batches_of_epoch_ = batches_of_epoch;
  if (steps == 0) steps = epochs * batches_of_epoch;
  warmup = std::llround(warmup_epochs * static_cast<double>(batches_of_epoch));
}

double Settings::rate(std::int64_t step) const {
  if (decay != "step") return command_line::Settings::rate(step);
  std::vector<std::int64_t> at;
  for (auto next = decay_epochs * batches_of_epoch_; next <= step; next += decay_epochs * batches_of_epoch_)
    at.push_back(next);
  return learning_rate * autopar::training::step_decay(step, at, warmup);
}

models::ResNetSize Settings::network() const {
  auto size = models::resnet_size(model, classes > 0 ? classes : 1000);
  size.planes = std::max<std::int64_t>(1, std::llround(width * static_cast<double>(size.planes)));
  return size;
}

images::Transform Settings::transform(images::Transform::Kind kind) const {
  return {kind, image_size, static_cast<int>(std::lround(image_size * 256.0 / 224))};
}

namespace {

void replace_common(CLI::App& app, Settings& settings) {
  for (const auto* name : {"--steps", "--accumulate", "--warmup", "--decay"}) app.remove_option(app.get_option(name));
  app.add_option("--epochs", settings.epochs, "how often all images are seen")->check(CLI::PositiveNumber);
  app.add_option("--steps", settings.steps, "end after so many steps, those of earlier starts included; 0 = --epochs")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--decay", settings.decay, "how the learning rate falls; step: to a tenth each --decay-epochs")
      ->check(CLI::IsMember({"constant", "step", "linear", "cosine"}));
  app.add_option("--decay-epochs", settings.decay_epochs)->check(CLI::PositiveNumber);
  app.add_option("--warmup-epochs", settings.warmup_epochs, "in which the learning rate rises; 5 suit large batches")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--momentum", settings.momentum)->check(CLI::Range(0.0, 1.0));
  app.add_option("--label-smoothing", settings.label_smoothing, "share of a label that is spread over all classes")
      ->check(CLI::Range(0.0, 1.0));
}

void add_model(CLI::App& app, Settings& settings) {
  const auto group = "The model";
  app.add_option("--model", settings.model, "resnet18, 34, 50, 101 or 152; resnet50x2 to x8 have as many more filters")
      ->group(group);
  app.add_option("--width", settings.width, "the same factor, of any size: 0.25 suits small images")
      ->check(CLI::PositiveNumber)
      ->group(group);
  app.add_option("--classes", settings.classes, "0 = as many as --data has, 1000 without")
      ->check(CLI::NonNegativeNumber)
      ->group(group);
  command_line::add_choice(app, "--batch-norm", settings.options.batch_norm,
                           "statistics of a replica's micro-batch, or exact: of the whole batch, summed over replicas")
      ->group(group);
  app.add_option("--load-weights", settings.load_weights,
                 "begin with a safetensors file: of torchvision's state_dict, or of --export")
      ->check(CLI::ExistingFile)
      ->group(group);
  app.add_option("--export", settings.export_file,
                 "write parameters and buffers there at the end, as safetensors with torchvision's names")
      ->group(group);
}

void add_data(CLI::App& app, Settings& settings) {
  const auto group = "Images";
  app.add_option("--data", settings.data, "folder with train/CLASS/*.jpg and val/CLASS/*.jpg")->group(group);
  app.add_option("--image-size", settings.image_size, "sides of what the network sees, in pixels")
      ->check(CLI::Range(1, 4096))
      ->group(group);
  app.add_option("--workers", settings.workers,
                 "threads of a rank that read images; 0 = as there are cores, at most 16; on CPUs 1")
      ->check(CLI::Range(0, 256))
      ->group(group);
  app.add_option("--prefetch", settings.prefetch, "batches that are read ahead")
      ->check(CLI::Range(1, 64))
      ->group(group);
  app.add_flag("--no-validation", settings.skips_validation, "there is no val/")->group(group);
  app.add_flag("--validate", settings.only_validates, "validate and end; with --load-weights or --resume")
      ->configurable(false)
      ->group(group);
}

}  // namespace

void add_own_options(CLI::App& app, Settings& settings) {
  replace_common(app, settings);
  add_model(app, settings);
  add_data(app, settings);
}

void require_consistent(const Settings& settings) {
  using autopar::InvalidArgument;
  static_cast<void>(settings.network());
  if (settings.data.empty() && !settings.options.plan_only)
    throw InvalidArgument(
        "--data is missing: a folder with train/CLASS/*.jpg and val/CLASS/*.jpg (`jpeg_folder /tmp/clothes` writes "
        "a small one); --plan-only needs none");
  if (settings.only_validates && settings.skips_validation)
    throw InvalidArgument("--validate and --no-validation exclude one another");
}
