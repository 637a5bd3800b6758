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

/// Options that fix what a planner may choose. A plan stores those that were set, so that it can be explained under
/// them.
inline constexpr std::array<std::string_view, 11> kKeptOptions{
    "stages",          "replicas",          "microbatches", "min_microbatches", "max_microbatches", "schedule",
    "tensor_parallel", "sequence_parallel", "zero",         "offload",          "recompute"};

/// Those of `kKeptOptions` that differ from their defaults, as "stages=4".
[[nodiscard]] inline std::vector<std::string> kept_options(const Options& options) {
  const Options defaults{};
  std::vector<std::string> out;
  const auto add_number = [&](const char* name, int value, int usual) {
    if (value != usual) out.push_back(std::string(name) + "=" + std::to_string(value));
  };
  const auto add_text = [&](const char* name, const std::string& text) {
    out.push_back(std::string(name) + "=" + text);
  };
  const auto add_word = [&](const char* name, const auto& value, const auto& usual) {
    if (value != usual) add_text(name, option_text(value));
  };
  add_number("stages", options.stages, defaults.stages);
  std::string replicas;
  for (const int count : options.replicas) replicas += (replicas.empty() ? "" : ",") + std::to_string(count);
  if (!replicas.empty()) add_text("replicas", replicas);
  add_number("microbatches", options.microbatches, defaults.microbatches);
  add_number("min_microbatches", options.min_microbatches, defaults.min_microbatches);
  add_number("max_microbatches", options.max_microbatches, defaults.max_microbatches);
  add_word("schedule", options.schedule, defaults.schedule);
  add_number("tensor_parallel", options.tensor_parallel, defaults.tensor_parallel);
  add_word("sequence_parallel", options.sequence_parallel, defaults.sequence_parallel);
  add_number("zero", options.zero, defaults.zero);
  add_word("offload", options.offload, defaults.offload);
  add_word("recompute", options.recompute, defaults.recompute);
  return out;
}

/// Whether a text is "name=value" of one of these options.
[[nodiscard]] inline bool is_kept_option(std::string_view text) {
  const auto equals = text.find('=');
  return equals != std::string_view::npos && std::ranges::count(kKeptOptions, text.substr(0, equals)) == 1;
}

}  // namespace autopar
