#pragma once

#include <optional>
#include <string>
#include <vector>

namespace autopar {

/// Where configuration is looked for besides the working directory. An empty name: nowhere.
struct ConfigPlaces {
  std::string file{};                  ///< AUTOPAR_CONFIG: the file of options
  std::string folder{};                ///< AUTOPAR_CONF_DIR
  std::string user_folder{};           ///< ${XDG_CONFIG_HOME:-~/.config}/autopar
  std::string rannc_folder{};          ///< RANNC_CONF_DIR, or else ~/.pyrannc
  bool is_rannc_folder_named = false;  ///< by RANNC_CONF_DIR, so it must exist
};

/// A file of configuration. No path: there is none.
struct FoundConfig {
  std::string path{};
  std::string text{};
  bool is_rannc = false;             ///< RaNNC's own file
  std::vector<std::string> notes{};  ///< for the user: what was passed over
};

/// The places of this process.
[[nodiscard]] ConfigPlaces process_config_places();

/// The first of: AUTOPAR_CONFIG, autopar.toml in AUTOPAR_CONF_DIR, in the working directory, in the user's folder;
/// rannc_conf.toml in RaNNC's folder.
/// @throws ConfigError if a named file or folder is not there, or a file cannot be read
[[nodiscard]] FoundConfig find_options_file(const ConfigPlaces& places);

/// logging.toml, in the same folders. In the working directory one that is not autopar's is passed over, with a note.
/// @throws ConfigError as find_options_file, or if the working directory's is not TOML
[[nodiscard]] FoundConfig find_log_file(const ConfigPlaces& places);

}  // namespace autopar
