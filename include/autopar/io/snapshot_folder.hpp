#pragma once

#include <cstdint>
#include <filesystem>

namespace autopar {

// A job's snapshots on a host lie in one folder in shared memory, see `snapshot_folder`. Its file `supervisor` says
// which process owns it, so that a later job can remove what a killed one has left.

/// Whether this is a folder and no link, of this user, in which nobody else may write.
[[nodiscard]] bool is_private_folder(const std::filesystem::path& path);

/// Makes the folder, mode 0700, for its owner alone. One that is there stays as it is.
/// @return whether it is private: else it is left alone
[[nodiscard]] bool make_private_folder(const std::filesystem::path& path);

/// Says that this process owns the folder, instead of any other.
/// @pre the folder is private
/// @return whether it could be written
bool own_snapshot_folder(const std::filesystem::path& folder);

enum class SnapshotOwner : std::uint8_t {
  kNone,   ///< the folder does not say
  kThere,  ///< as far as this process can see
  kGone,   ///< certainly: it was of this boot and this space of process numbers
};

[[nodiscard]] SnapshotOwner owner_of_snapshots(const std::filesystem::path& folder);

/// Removes folders beside `path` of this user's jobs whose owner is gone.
/// @return how many
int remove_stale_snapshots(const std::filesystem::path& path);

}  // namespace autopar
