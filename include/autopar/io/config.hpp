#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <autopar/plan/options.hpp>

namespace autopar {

/// Sources of options other than code.
struct ConfigSources {
  /// Text of the configuration file; empty if there is none. `file` is its name in messages.
  std::string text;
  std::string file = "autopar.toml";
  /// NAME=value pairs of the environment; only names that start with AUTOPAR_ or RANNC_ are used.
  std::vector<std::string> environment;
  /// key=value settings of a command line, shown as --key in messages. They override everything else.
  std::vector<std::string> arguments{};
  /// The folder for reusable files, ${XDG_CACHE_HOME:-~/.cache}/autopar; empty: none.
  std::string cache_folder{};
  bool has_file = false;  ///< `file` was read, so a log may name it
  bool is_rannc = false;  ///< `file` is RaNNC's own
};

/// Options and notes for the user (aliases used, settings without effect here).
struct ResolvedOptions {
  Options options;
  std::vector<std::string> notes;
  bool sets_log_level = false;  ///< a source has log_level, so logging.toml's levels do not count for what it names
};

/// The environment variables that autopar uses, as NAME=value.
[[nodiscard]] std::vector<std::string> process_environment();

/// How long the ranks of a job may take to connect: AUTOPAR_START_TIMEOUT in seconds, default 120. Read from the
/// environment only, since ranks connect before there are options.
/// @throws ConfigError if it is not a number of seconds
[[nodiscard]] Seconds start_timeout(const std::vector<std::string>& environment);

/// The sources of this process: the environment, and the file that `find_options_file` finds (config_search.hpp).
/// Functions of this name alone (`process_…`) read the environment in autopar.
/// @throws ConfigError as find_options_file
[[nodiscard]] ConfigSources process_config_sources();

/// Merges sources: defaults < file < code < environment < arguments. A field of `code` counts as set if it differs from
/// its default. Keys are the members of Options; RaNNC's names are aliases (see rannc_aliases()).
/// @throws ConfigError for an unknown key (with the most similar known one), or a value of a wrong type or out of range
/// @throws InvalidArgument if a value given in code is out of range
[[nodiscard]] ResolvedOptions resolve_options(const Options& code, const ConfigSources& sources);

/// Every option's name and value as text, in declaration order. Equal options give equal text on every rank.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> describe_options(const Options& options);

/// A key of RaNNC's manual with its counterpart, or the reason why none is needed.
struct RanncAlias {
  std::string_view rannc;
  std::string_view autopar;  ///< name of the option; empty if there is nothing to set
  std::string_view meaning;
};
[[nodiscard]] const std::vector<RanncAlias>& rannc_aliases();

/// The known word with the smallest edit distance; empty if none is similar.
[[nodiscard]] std::string nearest_word(std::string_view word, const std::vector<std::string>& known);

}  // namespace autopar
