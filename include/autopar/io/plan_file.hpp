#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <autopar/io/file.hpp>
#include <autopar/plan/plan.hpp>

namespace autopar {

/// A plan as JSON. Equal plans give equal text; parse_plan is the inverse.
[[nodiscard]] std::string to_json(const Plan& plan);

/// @param file  the file's name in messages
/// @throws ConfigError for text that is not a plan: truncated, of another version, with missing, unknown or invalid
/// values
[[nodiscard]] Plan parse_plan(std::string_view json, const std::string& file);
[[nodiscard]] Plan read_plan(const std::filesystem::path& path);
/// @throws ConfigError if the file exists and is not a plan of this model, unless `overwrite` allows it
void write_plan(const std::filesystem::path& path, const Plan& plan, Overwrite overwrite = Overwrite::kOwn);

}  // namespace autopar
