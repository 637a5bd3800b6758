#include "torch/session/session_options.hpp"

#include <sstream>
#include <string>
#include <utility>

#include <autopar/core/error.hpp>
#include <autopar/io/config.hpp>
#include <autopar/io/config_search.hpp>

#include "torch/ranks/collective_try.hpp"
#include "torch/session/log_setup.hpp"

namespace autopar::session {

namespace {

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
  ConfigSources sources;
  FoundConfig log_file;
  ranks::collective_try(ranks, "resolving options", [&] {
    sources = process_config_sources();
    cache_ = planning::user_cache(sources.cache_folder, ranks.world());
    resolved = resolve_options(code_, sources);
    if (ranks.is_first()) log_file = find_log_file(process_config_places());
  });
  require_same_options(ranks, resolved.options);
  options_ = resolved.options;
  if (!options_.graph_after.empty() && options_.graph_file.empty()) options_.graph_file = "autopar_graph.dot";
  set_up_log(ranks, sources, resolved, log_file);
  ranks.world().set_stall_limits({options_.stall_warning, options_.stall_timeout});
  if (ranks.is_first()) {
    for (const auto& note : resolved.notes) ranks.logger(LogModule::kSession).warn(note);
  }
  resolved_ = true;
}

}  // namespace autopar::session
