#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include <autopar/runtime/world.hpp>

#include "training/settings.hpp"

namespace training {

/// Where a training stands: what a program needs besides model and optimizer to go on as if nothing had happened.
struct Place {
  std::int64_t step = 0;   ///< steps done
  std::int64_t epoch = 0;  ///< epochs done, of programs that count them
  std::int64_t taken = 0;  ///< samples taken of the epoch under way
};

/// Of a run's folder: the options that it was started with.
[[nodiscard]] std::filesystem::path settings_file(const std::filesystem::path& folder);

/// The folder of a run, `--out`:
///
///     settings.json                      the options that it was started with, or went on with
///     metrics.jsonl, events.out.tfevents.*
///     step-00001000/model.safetensors    parameters, optimizer, generator; any plan and number of ranks loads them
///     step-00001000/place.json           written last: the checkpoint is complete
///
/// Only rank 0 reads and writes. Members are collective. Without --out there is no folder, and nothing is kept.
class RunFolder {
 public:
  /// Makes the folder, or finds the newest complete checkpoint of it.
  /// @throws InvalidArgument on every rank if a new run would go into the folder of another, or there is none to resume
  RunFolder(autopar::World& world, const Settings& settings);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] bool is_kept() const { return !path_.empty(); }

  /// Model, optimizers and place of the newest checkpoint; at the start of a run all are left as they are.
  template <class Model, class... Optimizers>
  Place load(Model& model, Optimizers&... optimizers) {
    if (newest_) model->load(folder_of(*newest_).string(), optimizers...);
    return newest_.value_or(Place());
  }

  /// Older checkpoints than the newest `keep` go when the new one is complete.
  template <class Model, class... Optimizers>
  void save(const Place& place, Model& model, Optimizers&... optimizers) {
    if (!is_kept()) return;
    model->save(folder_of(place).string(), optimizers...);
    complete(place);
  }

 private:
  [[nodiscard]] std::filesystem::path folder_of(const Place& place) const;
  void complete(const Place& place);

  autopar::World& world_;
  std::filesystem::path path_;
  std::string given_;
  std::int64_t keep_;
  std::optional<Place> newest_;
};

}  // namespace training
