#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <autopar/cost/model_profile.hpp>
#include <autopar/io/file.hpp>

namespace autopar {

/// A model's profile as JSON: all that planning needs, so that a plan can be made without the model.
[[nodiscard]] std::string to_json(const ModelProfile& profile);

/// @throws ConfigError for text that is not a profile: truncated, with unknown fields or invalid ids
[[nodiscard]] ModelProfile parse_profile(std::string_view json, const std::string& file);
[[nodiscard]] ModelProfile read_profile(const std::filesystem::path& path);
/// @throws ConfigError if the file exists and is not a profile of this model, unless `overwrite` allows it
void write_profile(const std::filesystem::path& path, const ModelProfile& profile,
                   Overwrite overwrite = Overwrite::kOwn);

}  // namespace autopar
