#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <autopar/cost/measured.hpp>
#include <autopar/io/file.hpp>
#include <autopar/version.hpp>

namespace autopar {

/// Where measurements come from: they hold for this device and these versions only.
struct CostOrigin {
  std::string device;    ///< with what its speed depends on, such as the number of threads
  std::string libtorch;  ///< version of the library that was measured
  std::string autopar = kVersion;
  friend bool operator==(const CostOrigin&, const CostOrigin&) = default;
};

/// What files of costs say that they are; one has those of all models.
inline constexpr const char* kCostMark = "autopar costs";

/// Measured costs as JSON, with their origin and a checksum: a cache, so what does not fit is refused, not repaired.
[[nodiscard]] std::string to_json(const MeasuredCosts& costs, const CostOrigin& origin);

/// @throws ConfigError, naming the first difference, for measurements of another device, library or format; and for
/// text
///         that is damaged: truncated, altered (checksum), with unknown members, or with numbers that are no costs
[[nodiscard]] MeasuredCosts parse_costs(std::string_view json, const std::string& file, const CostOrigin& expected);
[[nodiscard]] MeasuredCosts read_costs(const std::filesystem::path& path, const CostOrigin& expected);
/// Measurements with where they come from, for somebody who plans elsewhere.
struct CostFile {
  CostOrigin origin;
  MeasuredCosts costs;
};
/// @throws ConfigError as `parse_costs`, but takes measurements of any device and library
[[nodiscard]] CostFile parse_costs(std::string_view json, const std::string& file);
[[nodiscard]] CostFile read_costs(const std::filesystem::path& path);
/// Replaces the file at once: a reader sees the old cache or the new one.
/// @throws ConfigError where the file is there and holds no costs, of whichever origin, unless it may be overwritten
void write_costs(const std::filesystem::path& path, const MeasuredCosts& costs, const CostOrigin& origin,
                 Overwrite overwrite = Overwrite::kOwn);

}  // namespace autopar
