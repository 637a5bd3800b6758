#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <autopar/cost/measured.hpp>
#include <autopar/io/file.hpp>
#include <autopar/version.hpp>

namespace autopar {

/// The origin of measurements. They are valid only for this device and these versions.
struct CostOrigin {
  std::string device;    ///< including what its speed depends on, such as the number of threads
  std::string libtorch;  ///< version of the measured library
  std::string autopar = kVersion;
  friend bool operator==(const CostOrigin&, const CostOrigin&) = default;
};

/// The mark of cost files. One file has the costs of all models.
inline constexpr const char* kCostMark = "autopar costs";

/// Measured costs as JSON, with their origin and a checksum. A file that does not match is refused, not repaired.
[[nodiscard]] std::string to_json(const MeasuredCosts& costs, const CostOrigin& origin);

/// @throws ConfigError, with the first difference, for measurements of another device, library or format
/// @throws ConfigError for damaged text: truncated, altered (checksum), with unknown members or invalid costs
[[nodiscard]] MeasuredCosts parse_costs(std::string_view json, const std::string& file, const CostOrigin& expected);
[[nodiscard]] MeasuredCosts read_costs(const std::filesystem::path& path, const CostOrigin& expected);
/// Measurements and their origin, for planning on another machine.
struct CostFile {
  CostOrigin origin;
  MeasuredCosts costs;
};
/// Accepts measurements of any device and library.
/// @throws ConfigError for damaged text, as the other `parse_costs`
[[nodiscard]] CostFile parse_costs(std::string_view json, const std::string& file);
[[nodiscard]] CostFile read_costs(const std::filesystem::path& path);
/// Replaces the file atomically: a reader sees the old or the new content.
/// @throws ConfigError if the file exists and is not a cost file, of any origin, unless `overwrite` allows it
void write_costs(const std::filesystem::path& path, const MeasuredCosts& costs, const CostOrigin& origin,
                 Overwrite overwrite = Overwrite::kOwn);

}  // namespace autopar
