#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include <autopar/core/units.hpp>

namespace autopar {

/// The whole content of a text file. It may be an open stream such as /dev/stdin or a shell's <(command), or a device
/// such as /dev/null. A named pipe is refused, since opening it would wait for its writer.
/// @throws ConfigError if it cannot be read or is larger than `limit`
[[nodiscard]] std::string read_text_file(const std::filesystem::path& path, Bytes limit = Bytes(64 << 20));

/// Replaces `path` by `content` atomically: writes a temporary file in the same folder, syncs and renames it. A reader
/// sees the old or the new content, never a part. Folders are made. Links stay links, and an existing file keeps its
/// mode. Devices and pipes are written to.
/// @throws ConfigError with the system's reason
void write_text_file(const std::filesystem::path& path, std::string_view content);

/// Removes the temporary files that killed writers of `path` left. Files of living writers stay, and so do files that
/// cannot be removed. If the file system has no locks (flock), all stay.
/// @return the number of files removed
int remove_partial_files(const std::filesystem::path& path);

/// Which existing files may be replaced.
enum class Overwrite : std::uint8_t {
  kOwn,  ///< an empty file, or one that autopar wrote with the same mark
  kAny,  ///< any file
};

/// The mark in the first bytes of autopar's files, e.g. "autopar plan of model 0123456789abcdef". In JSON it is the
/// first member, "format"; in other formats a line, as a comment if the format has comments.
[[nodiscard]] std::string file_mark(std::string_view kind, std::uint64_t model);

/// Checks before long work that a file with this mark may be written; `write_marked_file` checks again.
/// @throws ConfigError otherwise, with what the file is and what to do
void require_replaceable(const std::filesystem::path& path, std::string_view mark,
                         Overwrite overwrite = Overwrite::kOwn);

/// `write_text_file` of content that carries `mark`, unless it would replace a file of others.
/// @throws ConfigError as `require_replaceable`, and with the system's reason
void write_marked_file(const std::filesystem::path& path, std::string_view content, std::string_view mark,
                       Overwrite overwrite = Overwrite::kOwn);

}  // namespace autopar
