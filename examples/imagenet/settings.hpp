#pragma once

#include <cstdint>
#include <string>

#include "command_line/settings.hpp"
#include "images/transform.hpp"
#include "models/resnet.hpp"

/// What the program can be told. Defaults are the recipe of PyTorch's examples/imagenet.
struct Settings : command_line::Settings {
  std::string data;
  std::string model = "resnet50";
  double width = 1;
  std::int64_t classes = 0;  ///< 0: as many as `data` has, 1000 without
  int image_size = 224;
  std::int64_t epochs = 90;
  double warmup_epochs = 0;
  std::int64_t decay_epochs = 30;
  double momentum = 0.9, label_smoothing = 0;
  int workers = 0, prefetch = 3;  ///< 0 workers: as many as there are cores for a rank, on CPUs one
  bool skips_validation = false, only_validates = false;
  std::string load_weights, export_file;

  Settings();

  /// Of a step, counted from 0. `steps` and `warmup` are known (see `count_steps`).
  [[nodiscard]] double rate(std::int64_t step) const;
  /// Works out how many steps there are.
  void count_steps(std::int64_t batches_of_epoch);
  [[nodiscard]] models::ResNetSize network() const;
  [[nodiscard]] images::Transform transform(images::Transform::Kind kind) const;

 private:
  std::int64_t batches_of_epoch_ = 1;
};

/// Its options, beside and in place of those that all trainings have. `command_line::add_options` has been called.
void add_own_options(CLI::App& app, Settings& settings);
/// @throws InvalidArgument naming options that do not go together
void require_consistent(const Settings& settings);
