#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include <autopar/plan/option_text.hpp>
#include <autopar/plan/options.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar {

/// An option that fixes what a planner may choose. A plan stores those that were set, so that it can be explained under
/// them.
struct KeptOption {
  std::string_view name;
  std::string (*text)(const Options&);
};
inline constexpr std::array<KeptOption, 12> kKeptOptions{{
    {"stages", [](const Options& all) { return std::to_string(all.stages); }},
    {"replicas",
     [](const Options& all) {
       std::string counts;
       for (const int count : all.replicas) counts += (counts.empty() ? "" : ",") + std::to_string(count);
       return counts;
     }},
    {"microbatches", [](const Options& all) { return std::to_string(all.microbatches); }},
    {"min_microbatches", [](const Options& all) { return std::to_string(all.min_microbatches); }},
    {"max_microbatches", [](const Options& all) { return std::to_string(all.max_microbatches); }},
    {"schedule", [](const Options& all) { return option_text(all.schedule); }},
    {"tensor_parallel", [](const Options& all) { return std::to_string(all.tensor_parallel); }},
    {"sequence_parallel", [](const Options& all) { return option_text(all.sequence_parallel); }},
    {"zero", [](const Options& all) { return std::to_string(all.zero); }},
    {"offload", [](const Options& all) { return option_text(all.offload); }},
    {"recompute", [](const Options& all) { return option_text(all.recompute); }},
    {"reduce_dtype", [](const Options& all) { return option_text(all.reduce_dtype); }},
}};

/// Those that differ from their defaults, as "stages=4".
[[nodiscard]] inline std::vector<std::string> kept_options(const Options& options) {
  std::vector<std::string> out;
  for (const auto& [name, text] : kKeptOptions) {
    if (text(options) != text(Options{})) out.push_back(std::string(name) + "=" + text(options));
  }
  return out;
}

/// Whether a text is "name=value" of one of these options.
[[nodiscard]] inline bool is_kept_option(std::string_view text) {
  const auto equals = text.find('=');
  return equals != std::string_view::npos &&
         std::ranges::count(kKeptOptions, text.substr(0, equals), &KeptOption::name) == 1;
}

}  // namespace autopar
