#pragma once

#include <filesystem>

#include <autopar/core/units.hpp>

namespace autopar {

/// Checks before long work that a file system has room: the one of the folder, or of its nearest parent that exists. If
/// the system cannot tell, the check passes, and the writer reports a full disk.
/// @throws CheckpointError with the folder, and the bytes that are needed and available
void require_space(const std::filesystem::path& folder, Bytes needed);

}  // namespace autopar
