#pragma once

#include <filesystem>
#include <string>

#include <autopar/core/units.hpp>
#include <autopar/runtime/world.hpp>

namespace autopar::training {

/// Sends a file to a rank that calls `receive_file`, through memory for a part of it. What fails does not end the
/// exchange: zeros are sent, or what comes is dropped.
/// @param bytes  of the file, as both ranks know
/// @return what has failed; empty: nothing
[[nodiscard]] std::string send_file(World& world, const std::filesystem::path& file, Bytes bytes, Rank to);
/// Replaces what has that name, with mode 0600.
[[nodiscard]] std::string receive_file(World& world, const std::filesystem::path& file, Bytes bytes, Rank from);

}  // namespace autopar::training
