#pragma once

#include <filesystem>
#include <string>

namespace autopar {

// Files that spare a later process work: what cannot be read or written is made again.

/// Empty if it cannot be read.
[[nodiscard]] std::string content_of(const std::filesystem::path& file);
/// Makes the folder if needed. Others who read the file meanwhile find the old one or the new one, whole.
void keep_file(const std::filesystem::path& file, const std::string& content);

}  // namespace autopar
