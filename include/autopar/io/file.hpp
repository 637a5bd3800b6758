#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include <autopar/core/units.hpp>

namespace autopar {

/// Whole content of a text file, of what is open already, such as /dev/stdin or <(command) of a shell, or of a device
/// such as /dev/null. A named pipe is refused: it would wait for its writer.
/// @throws ConfigError when it cannot be read or is larger than `limit`
[[nodiscard]] std::string read_text_file(const std::filesystem::path& path, Bytes limit = Bytes(64 << 20));

/// Replaces `path` by `content` at once, whatever it was: written aside in the same folder, synced, renamed. Folders
/// are made. A reader sees the old content or the new one, never a part. Links stay links, the mode of a file that is
/// there stays; devices and pipes are written to. @throws ConfigError with the system's reason
void write_text_file(const std::filesystem::path& path, std::string_view content);

/// Removes what writers of `path` that were killed have left beside it. What a living writer is at stays, as does what
/// cannot be removed; where the file system has no locks (flock) everything stays. @return files removed
int remove_partial_files(const std::filesystem::path& path);

/// Whether a file that is there already may be replaced.
enum class Overwrite : std::uint8_t {
  kOwn,  ///< if it is empty, or autopar wrote it and it is of the same: it carries the same mark
  kAny,  ///< whatever it is
};

/// What files of autopar say of themselves in their first bytes, e.g. "autopar plan of model 0123456789abcdef": the
/// first member of JSON, "format"; elsewhere a line, a comment where the format has comments.
[[nodiscard]] std::string file_mark(std::string_view kind, std::uint64_t model);

/// @throws ConfigError, naming what the file is and the way out, unless a file of this mark may be written there. For
/// who
///         would rather know before the work than after it; `write_marked_file` looks itself.
void require_replaceable(const std::filesystem::path& path, std::string_view mark,
                         Overwrite overwrite = Overwrite::kOwn);

/// `write_text_file` of content that carries `mark`, unless that destroys what is not autopar's to destroy.
/// @throws ConfigError as `require_replaceable`, and with the system's reason
void write_marked_file(const std::filesystem::path& path, std::string_view content, std::string_view mark,
                       Overwrite overwrite = Overwrite::kOwn);

}  // namespace autopar
