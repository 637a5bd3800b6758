#pragma once

#include <filesystem>
#include <optional>

#include <autopar/core/units.hpp>

namespace autopar {

/// Checks before long work that a file system has room: the one of the folder, or of its nearest parent that exists. If
/// the system cannot tell, the check passes, and the writer reports a full disk.
/// @throws CheckpointError with the folder, and the bytes that are needed and available
void require_space(const std::filesystem::path& folder, Bytes needed);

/// What the file system of a folder that exists has room for; nothing if the system does not say.
[[nodiscard]] std::optional<Bytes> free_space(const std::filesystem::path& folder);

/// What programs of this host can still get of its memory without swapping; nothing if the system does not say.
[[nodiscard]] std::optional<Bytes> available_memory();

}  // namespace autopar
