#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <autopar/core/units.hpp>
#include <autopar/io/checkpoint_index.hpp>
#include <autopar/training/run_folder.hpp>

// Snapshots of a run as they lie on one host, each in a folder step-00000010. Does not communicate. Nothing is read but
// what this user alone may write: no links, no files of others.

namespace autopar::training {

/// A snapshot whose files on this host say that it is complete.
struct SnapshotMark {
  Place place;
  std::uint64_t index = 0;  ///< checksum of its index.json
  std::string text{};       ///< of its file `snapshot`, written last: tells snapshots of one step apart
};

[[nodiscard]] std::filesystem::path snapshot_of_step(const std::filesystem::path& run, std::int64_t step);

/// The content of the file `snapshot`. @param index  the content of index.json
[[nodiscard]] std::string mark_text(const std::string& place, const std::string& index);
/// @throws InvalidArgument if the text is damaged
[[nodiscard]] SnapshotMark read_mark(const std::string& text, const std::filesystem::path& file);

/// Of the snapshots that are complete. @param damaged  gets what is wrong with others
[[nodiscard]] std::vector<SnapshotMark> marked_snapshots(const std::filesystem::path& run,
                                                         std::vector<std::string>& damaged);
/// The content of a snapshot's index.json.
/// @throws InvalidArgument if it is not the one that the mark names
[[nodiscard]] std::string read_index_of(const std::filesystem::path& snapshot, const SnapshotMark& mark);
/// Writes index.json, then `snapshot`. @throws ConfigError
void mark_complete(const std::filesystem::path& snapshot, const std::string& index, const std::string& mark);

/// Whether a data file is the one that the index names, and all its data are right: it is read. One that is not is
/// removed.
[[nodiscard]] bool is_whole(const std::filesystem::path& snapshot, const CheckpointFile& file);
/// For its owner alone. @throws InvalidArgument
void make_private(const std::filesystem::path& file);

/// Removes all snapshots but that of a step.
void remove_snapshots_but(const std::filesystem::path& run, std::int64_t step);

}  // namespace autopar::training
