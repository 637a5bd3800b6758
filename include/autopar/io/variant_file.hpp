#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <autopar/plan/bottleneck/tables.hpp>

namespace autopar {

/// What a planning instance is planned for; what is left out is taken from the file.
struct InstanceTarget {
  std::optional<int> devices;
  std::optional<double> memory;     ///< bytes of a device
  std::optional<double> bandwidth;  ///< bytes a second
};

/// A planning instance in the format of msr-fiddle/piper as tables for `BottleneckSearch`: costs of each node under
/// each tensor degree and variant, bytes of edges.
/// @throws ConfigError for text that is no such instance: truncated, unknown ids, missing, negative or infinite numbers
/// @throws InvalidArgument if the target has no device, memory or bandwidth, or the graph a cycle
[[nodiscard]] VariantTables parse_instance(std::string_view json, const std::string& file,
                                           const InstanceTarget& target = {});

/// The stages as the same project writes plans.
[[nodiscard]] std::string to_json(const VariantTables& tables, const std::vector<VariantStage>& stages);

/// And back. Whether they are a good plan, or one at all, is for `check_certificate` to say.
/// @throws ConfigError for text that is no plan of this instance: truncated, unknown nodes, degrees or variants
[[nodiscard]] std::vector<VariantStage> parse_stages(std::string_view json, const std::string& file,
                                                     const VariantTables& tables);

}  // namespace autopar
