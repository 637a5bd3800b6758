#include <autopar/io/config_search.hpp>

#include <catch_shim.hpp>
#include <refusal.hpp>
#include <temp_folder.hpp>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/io/config.hpp>
#include <autopar/io/file.hpp>

using namespace autopar;

namespace {
namespace config_search_test {

/// A working directory and a home of its own, and none of the variables that name other places.
class Elsewhere {
 public:
  Elsewhere() : before_(std::filesystem::current_path()) {
    for (const char* name : {"AUTOPAR_CONFIG", "AUTOPAR_CONF_DIR", "XDG_CONFIG_HOME", "RANNC_CONF_DIR", "HOME"}) {
      if (const char* value = std::getenv(name)) variables_[name] = value;
      ::unsetenv(name);
      names_.emplace_back(name);
    }
    ::setenv("HOME", at("home").c_str(), 1);
    std::filesystem::create_directories(at("work"));
    std::filesystem::current_path(at("work"));
  }
  Elsewhere(const Elsewhere&) = delete;
  Elsewhere& operator=(const Elsewhere&) = delete;
  ~Elsewhere() {
    for (const auto& name : names_) ::unsetenv(name.c_str());
    for (const auto& [name, value] : variables_) ::setenv(name.c_str(), value.c_str(), 1);
    std::filesystem::current_path(before_);
  }

  [[nodiscard]] std::string at(const std::string& path) const { return (folder_ / path).string(); }
  /// @return its path
  std::string put(const std::string& path, const std::string& text) const {
    write_text_file(at(path), text);
    return at(path);
  }

 private:
  TempFolder folder_;
  std::filesystem::path before_;
  std::vector<std::string> names_;
  std::map<std::string, std::string> variables_;
};

std::string options_path() { return find_options_file(process_config_places()).path; }
std::string log_path() { return find_log_file(process_config_places()).path; }

constexpr const char* kLog = "global_pattern = '%v'\n";

}  // namespace config_search_test
}  // namespace

using namespace config_search_test;

TEST_CASE("find_options_file: the first place that has it") {
  const Elsewhere elsewhere;
  CHECK(options_path().empty());
  CHECK_FALSE(process_config_sources().has_file);

  const auto of_rannc = elsewhere.put("home/.pyrannc/rannc_conf.toml", "partition_num = 2\n");
  CHECK(options_path() == of_rannc);
  CHECK(find_options_file(process_config_places()).is_rannc);
  const auto resolved = resolve_options({}, process_config_sources());
  CHECK(resolved.options.stages == 2);
  CHECK(contains(resolved.notes.at(0), "options are read from RaNNC's file " + of_rannc));

  const auto of_user = elsewhere.put("home/.config/autopar/autopar.toml", "stages = 3\n");
  CHECK(options_path() == of_user);
  CHECK(process_config_sources().has_file);
  CHECK_FALSE(process_config_sources().is_rannc);
  ::setenv("XDG_CONFIG_HOME", elsewhere.at("xdg").c_str(), 1);
  const auto of_xdg = elsewhere.put("xdg/autopar/autopar.toml", "stages = 4\n");
  CHECK(options_path() == of_xdg);
  ::setenv("XDG_CONFIG_HOME", "not/absolute", 1);
  CHECK(options_path() == of_user);

  elsewhere.put("work/autopar.toml", "stages = 5\n");
  CHECK(options_path() == "autopar.toml");

  ::setenv("AUTOPAR_CONF_DIR", elsewhere.at("conf").c_str(), 1);
  std::filesystem::create_directories(elsewhere.at("conf"));
  CHECK(options_path() == "autopar.toml");
  const auto of_folder = elsewhere.put("conf/autopar.toml", "stages = 6\n");
  CHECK(options_path() == of_folder);
  CHECK(resolve_options({}, process_config_sources()).options.stages == 6);

  const auto named = elsewhere.put("named.toml", "stages = 7\n");
  ::setenv("AUTOPAR_CONFIG", named.c_str(), 1);
  CHECK(options_path() == named);
  ::setenv("AUTOPAR_CONFIG", "", 1);
  CHECK(options_path() == of_folder);
}

TEST_CASE("find_options_file: RANNC_CONF_DIR is instead of ~/.pyrannc") {
  const Elsewhere elsewhere;
  elsewhere.put("home/.pyrannc/rannc_conf.toml", "partition_num = 2\n");
  std::filesystem::create_directories(elsewhere.at("rannc"));
  ::setenv("RANNC_CONF_DIR", elsewhere.at("rannc").c_str(), 1);
  CHECK(options_path().empty());
  const auto named = elsewhere.put("rannc/rannc_conf.toml", "partition_num = 3\n");
  CHECK(options_path() == named);
  elsewhere.put("rannc/logging.toml", kLog);
  CHECK(log_path() == elsewhere.at("rannc/logging.toml"));
  CHECK(find_log_file(process_config_places()).is_rannc);
}

TEST_CASE("find_options_file: a named place must be there") {
  const Elsewhere elsewhere;
  for (const char* name : {"AUTOPAR_CONFIG", "AUTOPAR_CONF_DIR", "RANNC_CONF_DIR"}) {
    ::setenv(name, elsewhere.at("nowhere").c_str(), 1);
    const auto message = refusal([] { (void)options_path(); });
    CAPTURE(name, message);
    CHECK(contains(message, std::string(name) + ": there is no such"));
    CHECK(contains(message, elsewhere.at("nowhere")));
    ::unsetenv(name);
  }
  const auto file = elsewhere.put("a_file", "");
  for (const char* name : {"AUTOPAR_CONF_DIR", "RANNC_CONF_DIR"}) {
    ::setenv(name, file.c_str(), 1);
    CHECK(contains(refusal([] { (void)log_path(); }),
                   std::string(name) + ": there is no folder of this name, but a file"));
    ::unsetenv(name);
  }
  ::setenv("RANNC_CONF_DIR", elsewhere.at("nowhere").c_str(), 1);  // not asked for where ours is found
  elsewhere.put("work/autopar.toml", "");
  CHECK(options_path() == "autopar.toml");
}

TEST_CASE("find_options_file: a folder in place of a file is refused") {
  const Elsewhere elsewhere;
  std::filesystem::create_directories(elsewhere.at("work/autopar.toml"));
  CHECK(contains(refusal([] { (void)options_path(); }), "autopar.toml"));
}

TEST_CASE("find_log_file: another program's is left, in a word") {
  const Elsewhere elsewhere;
  CHECK(log_path().empty());
  elsewhere.put("work/logging.toml", "version = 1\n[handlers]\n");
  auto found = find_log_file(process_config_places());
  CHECK(found.path.empty());
  REQUIRE(found.notes.size() == 1);
  CHECK(contains(found.notes[0], "another program's"));

  const auto of_user = elsewhere.put("home/.config/autopar/logging.toml", kLog);
  found = find_log_file(process_config_places());
  CHECK(found.path == of_user);
  CHECK(found.text == kLog);
  CHECK(found.notes.size() == 1);

  elsewhere.put("work/logging.toml", "not toml");
  CHECK(contains(refusal([] { (void)log_path(); }), "logging.toml:1: "));
  elsewhere.put("work/logging.toml", kLog);
  CHECK(log_path() == "logging.toml");

  ::setenv("AUTOPAR_CONF_DIR", elsewhere.at("conf").c_str(), 1);
  const auto of_folder = elsewhere.put("conf/logging.toml", "");
  CHECK(log_path() == of_folder);
  CHECK(find_log_file(process_config_places()).notes.empty());
}
