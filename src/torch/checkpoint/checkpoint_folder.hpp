#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include <autopar/core/ids.hpp>
#include <autopar/io/checkpoint_index.hpp>
#include <autopar/torch/checkpoint_format.hpp>

namespace autopar::checkpoint {

// A checkpoint's folder has an index, which alone says what the checkpoint is, and data files. A save writes data files
// under names of its generation, then replaces the index, then removes the data files that the new index does not name.
// A save that ends early leaves the previous checkpoint and orphans, which the next save or load removes.

inline constexpr const char* kIndexFile = "index.json";
inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kSeenFile = ".autopar-seen";  ///< for a moment, to find out who sees the folder

enum class Section : std::uint8_t { kModel, kOptimizer };

/// A data file's name: "model.safetensors" or, sharded, "model-0003-g7.safetensors".
[[nodiscard]] std::string data_file(CheckpointFormat format, Section section, Rank writer, std::int64_t generation);
/// Where a data file of this name is written: files of a single file have names of their generation, too, until the
/// index names them.
[[nodiscard]] std::filesystem::path path_aside(const std::filesystem::path& folder, const std::string& file,
                                               std::int64_t generation);
/// Where it is.
[[nodiscard]] std::filesystem::path path_of(const std::filesystem::path& folder, const std::string& file,
                                            std::int64_t generation);

/// The generation of the next save: higher than all in the folder.
/// @param present  the folder's index
[[nodiscard]] std::int64_t next_generation(const std::filesystem::path& folder,
                                           const std::optional<CheckpointIndex>& present);
/// That the plain names of a single file's data files are free, or are of files that autopar wrote.
/// @param present  the folder's index
/// @throws CheckpointError with the first file that a program of others wrote, or that is no regular file
void require_replaceable(const std::filesystem::path& folder, const std::optional<CheckpointIndex>& present,
                         const CheckpointIndex& index);
/// Makes a generation the folder's checkpoint, and removes all others.
/// @pre all its data files are written, and the folder is locked
/// @throws CheckpointError if the index cannot be written; then the previous checkpoint is there
void publish(const std::filesystem::path& folder, const CheckpointIndex& index);
/// Whether saves that ended early, or one that is under way, have left files.
[[nodiscard]] bool has_orphans(const std::filesystem::path& folder);
/// Removes what saves that ended early have left. Files that cannot be removed stay.
/// @pre the folder is locked
/// @return the folder's index
std::optional<CheckpointIndex> remove_orphans(const std::filesystem::path& folder);

/// @return none if there is no index
[[nodiscard]] std::optional<CheckpointIndex> read_index(const std::filesystem::path& folder);

}  // namespace autopar::checkpoint
