#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <autopar/cost/model_profile.hpp>
#include <autopar/io/file.hpp>

namespace autopar {

/// A model's profile as JSON: what planning needs, so that a plan can be made without the model.
[[nodiscard]] std::string to_json(const ModelProfile& profile);

/// @throws ConfigError for text that is no profile: truncated, with unknown fields or ids that point nowhere
[[nodiscard]] ModelProfile parse_profile(std::string_view json, const std::string& file);
[[nodiscard]] ModelProfile read_profile(const std::filesystem::path& path);
/// @throws ConfigError where the file is there and is no profile of this model, unless it may be overwritten
void write_profile(const std::filesystem::path& path, const ModelProfile& profile,
                   Overwrite overwrite = Overwrite::kOwn);

}  // namespace autopar
