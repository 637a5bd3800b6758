#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <autopar/core/cluster.hpp>

namespace autopar {

/// Reads a cluster description in TOML (examples/clusters shows the fields).
/// @param file  the file's name in messages
/// @throws ConfigError with file, line and key for what is missing, unknown, of a wrong type or out of range
[[nodiscard]] Cluster parse_cluster(std::string_view toml, const std::string& file);
[[nodiscard]] Cluster read_cluster(const std::filesystem::path& path);
[[nodiscard]] std::string to_toml(const Cluster& cluster);

}  // namespace autopar
