#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include <autopar/runtime/world.hpp>
#include <autopar/torch/checkpoint_format.hpp>
#include <autopar/training/batch_watch.hpp>
#include <autopar/training/better.hpp>
#include <autopar/training/time_spent.hpp>

namespace autopar::training {

/// Where a training stands: what a program needs besides model, optimizer and kept values to go on as if nothing had
/// happened.
struct Place {
  std::int64_t step = 0;   ///< steps done
  std::int64_t epoch = 0;  ///< epochs done, of programs that count them
  std::int64_t taken = 0;  ///< samples taken of the epoch under way
  StepSize size{};         ///< of its steps
  TimeSpent spent{};       ///< up to here

  friend bool operator==(const Place&, const Place&) = default;
};

/// How a run begins.
enum class Start : std::uint8_t {
  kNewOrResume,  ///< go on from the newest complete checkpoint if there is one, else start anew
  kNew,          ///< refuse a folder that has a complete checkpoint, or a snapshot in memory
  kResume,       ///< refuse a folder that has neither
};

struct RunFolderOptions {
  std::filesystem::path path{};  ///< empty: nothing is kept
  Start start = Start::kNewOrResume;
  std::int64_t keep = 3;      ///< newest checkpoints that stay, at least 1
  bool wait = true;           ///< false: checkpoints are written in the background (SaveOptions::wait)
  bool has_snapshot = false;  ///< there is something to go on from in memory, see Snapshots
  std::string settings{};     ///< a text for `settings.json`, such as the options of the command line; empty: none
};

/// Of a run's folder: the options that it was started with.
[[nodiscard]] inline std::filesystem::path settings_file(const std::filesystem::path& folder) {
  return folder / "settings.json";
}

/// The folder of a run:
///
///     settings.json                      the options that it was started with, or went on with
///     snapshots.id                       which snapshots in memory are of this run, see Snapshots
///     metrics.jsonl, metrics.csv, events.out.tfevents.*
///     step-00001000/                     a checkpoint; any plan and number of ranks loads it
///     step-00001000/place.json           where the training stood; written before the rest
///     step-00001000/index.json           written last: the checkpoint is complete
///     best/                              the weights that were best by a metric, with best.json
///
/// Members are collective. Files besides the checkpoints are read and written by rank 0.
class RunFolder {
 public:
  /// Makes the folder, or finds the newest complete checkpoint of it.
  /// @throws InvalidArgument, on every rank, if `options.start` refuses the folder, `options.keep` is not positive, or
  /// a file of the folder is damaged
  RunFolder(World& world, const RunFolderOptions& options);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] bool is_kept() const { return !path_.empty(); }
  /// Of the newest checkpoint; nothing at the start of a run.
  [[nodiscard]] const std::optional<Place>& newest() const { return newest_; }

  /// Model, optimizers and place of the newest checkpoint; at the start of a run all are left as they are.
  /// @param model  an AutoParallel
  template <class Model, class... Optimizers>
  Place load(Model& model, Optimizers&... optimizers) {
    if (newest_) model->load(folder_of(*newest_).string(), optimizers...);
    return newest_.value_or(Place());
  }

  /// Saves, and removes older checkpoints than the newest `keep` that are complete. A step that is saved already is not
  /// saved again.
  template <class Model, class... Optimizers>
  void save(const Place& place, Model& model, Optimizers&... optimizers) {
    if (!is_kept() || (newest_ && newest_->step == place.step)) return;
    begin(place);
    model->save(folder_of(place).string(), {&optimizers...}, SaveOptions{.wait = wait_});
    newest_ = place;
    remove_old();
  }
  /// Saves what another folder has, a complete checkpoint of that place: rank 0 copies it.
  /// @throws InvalidArgument, on every rank, if rank 0 cannot
  void save_copy(const Place& place, const std::filesystem::path& from);
  /// Waits until the latest checkpoint is complete, where checkpoints are written in the background.
  template <class Model>
  void finish(Model& model) {
    model->wait();
    if (newest_) remove_old();
  }

  /// Saves the weights in `best/` if `value` is better than all that were given before, also in earlier starts of the
  /// run. Rank 0's value decides. NaN and infinite values are never best.
  /// @param metric  of one metric a run
  /// @return whether it is the best
  /// @throws InvalidArgument, on every rank, if the best so far is of another metric
  template <class Model>
  bool save_best(const Place& place, const std::string& metric, double value, Model& model,
                 Better better = Better::kHigher) {
    if (!is_best(metric, value, better)) return false;
    if (is_kept()) model->save((path_ / "best").string());
    complete_best(place, metric, value);
    return true;
  }

 private:
  struct Best {
    std::string metric;
    double value = 0;
  };

  [[nodiscard]] std::filesystem::path folder_of(const Place& place) const;
  void begin(const Place& place);
  /// At most one checkpoint, the newest, is under way.
  void remove_old();
  [[nodiscard]] bool is_best(const std::string& metric, double value, Better better);
  void complete_best(const Place& place, const std::string& metric, double value);

  World& world_;
  std::filesystem::path path_;
  std::string settings_;
  std::int64_t keep_;
  bool wait_;
  std::optional<Place> newest_;  ///< complete, or under way
  std::optional<Best> best_;     ///< on rank 0
};

}  // namespace autopar::training
