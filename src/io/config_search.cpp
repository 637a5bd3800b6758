#include <autopar/io/config_search.hpp>

#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include <autopar/core/error.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/log_config.hpp>

namespace autopar {

namespace {

constexpr Bytes kMostOfConfig(1 << 20);

std::string in_folder(const std::string& folder, const char* name) {
  return folder.ends_with('/') ? folder + name : folder + "/" + name;
}

/// Whether something has this name. What cannot be looked at, in the home of another user say, is not there.
bool is_there(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

void require_folder(const std::string& folder, const char* variable) {
  std::error_code error;
  if (std::filesystem::is_directory(folder, error)) return;
  const bool is_missing = !is_there(folder);
  throw ConfigError(std::string(variable) + ": there is no " +
                        (is_missing ? "such folder" : "folder of this name, but a file") +
                        "; create the folder, or unset the variable",
                    folder, 0, variable);
}

/// Of `name` in autopar's own folders, in their order; in RaNNC's folder it is `rannc_name`.
class Search {
 public:
  Search(const ConfigPlaces& places, const char* name, const char* rannc_name)
      : places_(places), name_(name), rannc_name_(rannc_name) {}

  /// @param takes  whether to take the working directory's file
  template <class Takes>
  FoundConfig find(Takes takes) const {
    if (!places_.folder.empty()) {
      require_folder(places_.folder, "AUTOPAR_CONF_DIR");
      if (const auto path = in_folder(places_.folder, name_); is_there(path)) return read(path);
    }
    FoundConfig here;
    if (is_there(name_)) {
      here = read(name_);
      if (takes(here)) return here;
    }
    auto notes = std::move(here.notes);
    auto found = find_elsewhere();
    found.notes = std::move(notes);
    return found;
  }

 private:
  static FoundConfig read(const std::string& path) { return {path, read_text_file(path, kMostOfConfig)}; }

  FoundConfig find_elsewhere() const {
    if (!places_.user_folder.empty()) {
      if (const auto path = in_folder(places_.user_folder, name_); is_there(path)) return read(path);
    }
    if (places_.rannc_folder.empty()) return {};
    if (places_.is_rannc_folder_named) require_folder(places_.rannc_folder, "RANNC_CONF_DIR");
    const auto path = in_folder(places_.rannc_folder, rannc_name_);
    if (!is_there(path)) return {};
    auto found = read(path);
    found.is_rannc = true;
    return found;
  }

  const ConfigPlaces& places_;
  const char* name_;
  const char* rannc_name_;
};

}  // namespace

FoundConfig find_options_file(const ConfigPlaces& places) {
  if (!places.file.empty()) {
    if (!is_there(places.file))
      throw ConfigError("AUTOPAR_CONFIG: there is no such file; create it, or unset the variable", places.file, 0,
                        "AUTOPAR_CONFIG");
    return {places.file, read_text_file(places.file, kMostOfConfig)};
  }
  return Search(places, "autopar.toml", "rannc_conf.toml").find([](const FoundConfig&) { return true; });
}

FoundConfig find_log_file(const ConfigPlaces& places) {
  return Search(places, "logging.toml", "logging.toml").find([](FoundConfig& here) {
    if (is_log_config(here.text, here.path)) return true;
    here.notes.push_back(
        "logging.toml in the working directory is another program's, without one of the keys sink, logger, pattern and "
        "global_pattern; autopar leaves it alone");
    return false;
  });
}

}  // namespace autopar
