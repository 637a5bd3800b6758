#pragma once

#include <filesystem>
#include <string>

#include <autopar/training/run_folder.hpp>

namespace autopar::training {

/// As JSON on one line.
[[nodiscard]] std::string place_text(const Place& place);

/// @param file  its name in messages
/// @throws InvalidArgument if the text is damaged
[[nodiscard]] Place read_place(const std::string& text, const std::filesystem::path& file);

}  // namespace autopar::training
