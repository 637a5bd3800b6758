#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <autopar/plan/options.hpp>

namespace autopar {

/// Where options come from besides code.
struct ConfigSources {
  /// Text of the configuration file, with `file` as its name in messages; empty = none.
  std::string text;
  std::string file = "autopar.toml";
  /// NAME=value pairs of the environment; only those that start with AUTOPAR_ or RANNC_ count.
  std::vector<std::string> environment;
  /// key=value settings of a command line, named as --key in messages. They override everything else.
  std::vector<std::string> arguments{};
  /// Where the user's programs keep what they can make again: ${XDG_CACHE_HOME:-~/.cache}/autopar; empty = nowhere.
  std::string cache_folder{};
};

/// Options and what a user should be told about them (aliases used, settings without effect here).
struct ResolvedOptions {
  Options options;
  std::vector<std::string> notes;
};

/// The variables of the environment that are autopar's, as NAME=value.
[[nodiscard]] std::vector<std::string> process_environment();

/// How long the ranks of a job may take to find one another: AUTOPAR_START_TIMEOUT in seconds, 120 without it. Of the
/// environment alone, since ranks start before there are options.
/// @throws ConfigError if it is no number of seconds
[[nodiscard]] Seconds start_timeout(const std::vector<std::string>& environment);

/// The process's own sources: the environment, and `autopar.toml` in the working directory or the file that
/// AUTOPAR_CONFIG names. This and process_environment are what reads the environment in autopar.
/// @throws ConfigError if AUTOPAR_CONFIG names no readable file
[[nodiscard]] ConfigSources process_config_sources();

/// defaults < file < code < environment < arguments. A field of `code` counts as set when it differs from its default.
/// Keys are the members of Options; RaNNC's names are aliases (see rannc_aliases()).
/// @throws ConfigError for an unknown key (with the nearest known one), a value of a wrong type or out of range;
///         InvalidArgument when a value given in code is out of range
[[nodiscard]] ResolvedOptions resolve_options(const Options& code, const ConfigSources& sources);

/// Every option's name and value as text, in declaration order; equal options give equal text on every rank.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> describe_options(const Options& options);

/// One row a key of RaNNC's manual: its counterpart here, or why none is needed.
struct RanncAlias {
  std::string_view rannc;
  std::string_view autopar;  ///< option name, empty if there is nothing to set
  std::string_view meaning;
};
[[nodiscard]] const std::vector<RanncAlias>& rannc_aliases();

/// The known word with the smallest edit distance, empty if all are far.
[[nodiscard]] std::string nearest_word(std::string_view word, const std::vector<std::string>& known);

}  // namespace autopar
