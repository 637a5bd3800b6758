#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <autopar/io/file.hpp>
#include <autopar/plan/plan.hpp>

namespace autopar {

/// A plan as JSON: the same plan gives the same text, and back.
[[nodiscard]] std::string to_json(const Plan& plan);

/// @param file  its name in messages
/// @throws ConfigError for text that is no plan: truncated, of another version, with missing, unknown or hostile values
[[nodiscard]] Plan parse_plan(std::string_view json, const std::string& file);
[[nodiscard]] Plan read_plan(const std::filesystem::path& path);
/// @throws ConfigError where the file is there and is no plan of this model, unless it may be overwritten
void write_plan(const std::filesystem::path& path, const Plan& plan, Overwrite overwrite = Overwrite::kOwn);

}  // namespace autopar
