#include "torch/session/log_setup.hpp"

#include <filesystem>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

#include <autopar/core/error.hpp>
#include <autopar/core/printable.hpp>
#include <autopar/io/log_config.hpp>

#include "torch/ranks/collective_try.hpp"

namespace autopar::session {

namespace {

/// "warn,Planner=debug": a level for all modules, and levels of single ones.
void set_log_levels(Log& log, const std::string& levels) {
  std::istringstream items(levels);
  for (std::string item; std::getline(items, item, ',');) {
    const auto equals = item.find('=');
    const auto level = log_level_named(equals == std::string::npos ? item : item.substr(equals + 1));
    const auto module = log_module_named(item.substr(0, equals));
    if (!level || (equals != std::string::npos && !module)) {
      throw InvalidArgument("log_level has the part '" + item +
                            "', which is neither a level (trace, debug, info, warn, error, off) nor Module=level");
    }
    if (equals == std::string::npos)
      log.set_level(*level);
    else
      log.set_level(*module, *level);
  }
}

/// Rank 0's, on every rank. Collective.
FoundConfig of_first(ranks::Ranks& ranks, const FoundConfig& found) {
  auto bytes = ranks::blob_of(ranks.is_first() ? found.path + '\0' + found.text : "");
  const auto text = ranks::text_of(ranks.broadcast(std::move(bytes), Rank(0), "sending logging.toml"));
  const auto end = text.find('\0');
  return {.path = text.substr(0, end), .text = text.substr(end + 1)};
}

std::string whole_path(const std::string& path) {
  std::error_code error;
  const auto whole = std::filesystem::absolute(path, error);
  return printable_line(error ? path : whole.string());
}

}  // namespace

void set_up_log(ranks::WorldRanks& ranks, const ConfigSources& sources, const ResolvedOptions& resolved,
                const FoundConfig& log_file) {
  auto& log = ranks.world().log();
  const auto file = of_first(ranks, log_file);
  LogConfig config;
  bool is_other = false;
  ranks::collective_try(ranks, "setting up the log", [&] {
    if (!file.path.empty()) config = parse_log_config(file.text, file.path);
    is_other = log.configure(config);
    if (resolved.sets_log_level) set_log_levels(log, resolved.options.log_level);
  });
  if (!is_other || !ranks.is_first()) return;
  const auto logger = ranks.logger(LogModule::kSession);
  for (const auto& note : log_file.notes) logger.warn(note);
  for (const auto& note : config.notes) logger.warn(note);
  if (sources.has_file) logger.info("options are read from " + whole_path(sources.file));
  if (!file.path.empty()) logger.info("the log is set up by " + whole_path(file.path));
}

}  // namespace autopar::session
