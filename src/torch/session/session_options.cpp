#include "torch/session/session_options.hpp"

#include <sstream>
#include <string>
#include <utility>

#include <autopar/core/error.hpp>
#include <autopar/io/config.hpp>

#include "torch/ranks/collective_try.hpp"

namespace autopar::session {

namespace {

/// "warn,Planner=debug": a level for all modules, and levels of single ones.
void set_log_levels(Log& log, const std::string& levels) {
  std::istringstream items(levels);
  for (std::string item; std::getline(items, item, ',');) {
    const auto equals = item.find('=');
    const auto level = log_level_named(equals == std::string::npos ? item : item.substr(equals + 1));
    bool known = level.has_value();
    if (known && equals == std::string::npos) log.set_level(*level);
    if (known && equals != std::string::npos) {
      known = false;
      for (int m = 0; m < kLogModules; ++m) {
        if (name_of(static_cast<LogModule>(m)) != item.substr(0, equals)) continue;
        log.set_level(static_cast<LogModule>(m), *level);
        known = true;
      }
    }
    if (!known) {
      throw InvalidArgument("log_level has the part '" + item +
                            "', which is neither a level (trace, debug, info, warn, error, off) nor Module=level");
    }
  }
}

/// All ranks must have the same. Collective.
void require_same_options(ranks::Ranks& ranks, const Options& options) {
  std::string text;
  for (const auto& [name, value] : describe_options(options)) text += name + " = " + value + "\n";
  const auto texts = ranks.all_gather(ranks::blob_of(text), "comparing options");
  for (std::size_t r = 0; r < texts.size(); ++r) {
    const auto other = ranks::text_of(texts[r]);
    if (other == ranks::text_of(texts[0])) continue;
    std::istringstream first_lines(ranks::text_of(texts[0])), other_lines(other);
    std::string a, b;
    while (std::getline(first_lines, a) && std::getline(other_lines, b) && a == b) {
    }
    throw InvalidArgument("options differ between ranks: rank 0 has " + a + ", rank " + std::to_string(r) + " has " +
                          b + "; give every rank the same options");
  }
}

}  // namespace

void SessionOptions::resolve(ranks::WorldRanks& ranks) {
  ResolvedOptions resolved;
  ranks::collective_try(ranks, "resolving options", [&] {
    const auto sources = process_config_sources();
    cache_ = planning::user_cache(sources.cache_folder, ranks.world());
    resolved = resolve_options(code_, sources);
  });
  require_same_options(ranks, resolved.options);
  options_ = resolved.options;
  if (!options_.graph_after.empty() && options_.graph_file.empty()) options_.graph_file = "autopar_graph.dot";
  set_log_levels(ranks.world().log(), options_.log_level);
  ranks.world().set_stall_limits({options_.stall_warning, options_.stall_timeout});
  if (ranks.is_first()) {
    for (const auto& note : resolved.notes) ranks.logger(LogModule::kSession).warn(note);
  }
  resolved_ = true;
}

}  // namespace autopar::session
