#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include <autopar/core/units.hpp>

namespace autopar {

/// Whole content of a text file. @throws ConfigError when it cannot be read or is larger than `limit`.
[[nodiscard]] std::string read_text_file(const std::filesystem::path& path, Bytes limit = Bytes(64 << 20));

/// Replaces `path` by `content` at once: written aside in the same folder, synced, renamed. Folders are made.
/// A reader sees the old content or the new one, never a part. @throws ConfigError with the system's reason.
void write_text_file(const std::filesystem::path& path, std::string_view content);

/// Removes what writers of `path` that were killed have left beside it. What a living writer is at stays, as does what
/// cannot be removed; where the file system has no locks (flock) everything stays. @return files removed
int remove_partial_files(const std::filesystem::path& path);

}  // namespace autopar
