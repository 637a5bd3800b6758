#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <autopar/runtime/world.hpp>
#include <autopar/torch/saved_parts.hpp>
#include <autopar/training/run_folder.hpp>

namespace autopar::training {

/// Where a run's snapshots lie on this rank's host.
struct SnapshotPlace {
  std::filesystem::path job{};  ///< folder of the job in shared memory, for this user alone
  std::string run{};            ///< folder in it, of this run
  bool is_supervised = false;   ///< `autopar run` removes the job's folder
  std::filesystem::path id_file{};
  std::string id{};  ///< what id_file has or gets: a run whose folder was removed is another one. Empty: it has none
};

/// Of a run under `autopar run`, or else of a run with a folder, whose path names the job. Collective.
/// @param every  steps between snapshots
/// @param run    its folder; empty: it keeps nothing
/// @return nothing if there is neither, or `every` is 0
/// @throws InvalidArgument, on every rank, if ranks differ in `every`
[[nodiscard]] std::optional<SnapshotPlace> snapshot_place(World& world, std::int64_t every,
                                                          const std::filesystem::path& run);

/// Snapshots of a run in memory of its hosts, so that a killed process costs few steps. Run makes them, as
/// Options::snapshot_every says:
///
///     /dev/shm/autopar-UID-JOB/supervisor            which process owns the folder, see snapshot_folder.hpp
///     /dev/shm/autopar-UID-JOB/RUN/step-00000010/    model-0000-g1.safetensors, …, index.json
///     /dev/shm/autopar-UID-JOB/RUN/step-00000010/snapshot   the place and checksums; written last
///
/// A host has the files of its ranks and, if there are several hosts, copies of those of the host before it. A host is
/// what sees one folder. The two newest snapshots are there; while one is made, the newest. Of those that are left by
/// an earlier start, the newest of which each file is whole on some host counts. What rank 0's host lacks is sent to
/// it. Folders and files must be of this user, who alone may write; links are not followed.
///
/// Nothing that goes wrong with them ends the training: rank 0's log has one warning, and there are no more snapshots.
/// Members are collective, unless they say otherwise.
class Snapshots {
 public:
  /// Writes this rank's part of a checkpoint: ParallelModule::save_parts. @throws CheckpointError, on every rank
  using Write = std::function<SavedParts(const std::string& folder, const AcceptParts& accept)>;

  /// Finds the newest snapshot, and removes those of this user's jobs that are gone.
  /// @param every  steps; 0: none are made or looked for
  /// @param place  of `snapshot_place`
  Snapshots(World& world, std::int64_t every, const std::optional<SnapshotPlace>& place);
  ~Snapshots();
  Snapshots(const Snapshots&) = delete;
  Snapshots& operator=(const Snapshots&) = delete;

  /// Not collective.
  [[nodiscard]] bool is_due(std::int64_t step) const;
  /// Of the newest one that an earlier start has left; on rank 0's host it is whole. Not collective.
  [[nodiscard]] const std::optional<Place>& newest() const;
  /// Its folder, which `model->load` reads. Not collective.
  [[nodiscard]] std::filesystem::path newest_folder() const;
  /// It cannot be loaded: turns to the one before. @param why  for the log
  void skip_newest(const std::string& why);

  /// Before the first one, asks each host whether it has memory for two, with copies.
  /// @throws CheckpointError, on every rank, for what no checkpoint can have. Also if a save to disk has failed in the
  /// background
  /// @cost what ranks hold, once to memory, and once over the network where there are several hosts
  void save(const Place& place, const Write& write);
  /// At the end, when the disk has all: removes them on all hosts.
  void remove();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace autopar::training
