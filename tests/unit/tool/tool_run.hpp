#pragma once

#include <catch_shim.hpp>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include <unistd.h>

#include <autopar/io/cluster_file.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/profile_file.hpp>
#include <autopar/testing/random_models.hpp>

#include "tool.hpp"

namespace autopar::test {

/// What a call of the tool gave.
struct ToolResult {
  int status = -1;
  std::string out, err;
};

inline ToolResult run_tool(std::vector<std::string> arguments) {
  std::ostringstream out, err;
  const int status = tool::run(std::move(arguments), out, err);
  return {status, out.str(), err.str()};
}

/// One line that starts with the command, says all the parts, and status 2.
inline void check_trouble(const ToolResult& result, const std::vector<std::string>& parts) {
  CAPTURE(result.err, result.out);
  CHECK(result.status == 2);
  CHECK(result.out.empty());
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  CHECK(result.err.starts_with("autopar"));
  for (const auto& part : parts) CHECK_THAT(result.err, Catch::Matchers::Contains(part));
}

/// A folder of its own with a profile and a cluster that the tool plans.
class ToolFolder {
 public:
  explicit ToolFolder(const std::string& name)
      : path_(std::filesystem::temp_directory_path() / ("autopar_" + name + "_" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
    model = testing::chain(6, 3e5, 40000, 4000);
    cluster = testing::small_cluster(4);
    write();
  }
  ~ToolFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ToolFolder(const ToolFolder&) = delete;
  ToolFolder& operator=(const ToolFolder&) = delete;

  void write() const {
    put("profile.json", to_json(model));
    put("cluster.toml", to_toml(cluster));
  }
  [[nodiscard]] std::string at(const std::string& file) const { return (path_ / file).string(); }
  [[nodiscard]] std::string text(const std::string& file) const { return read_text_file(at(file)); }
  void put(const std::string& file, const std::string& text) const { write_text_file(at(file), text); }

  /// `plan` for this profile and cluster.
  [[nodiscard]] ToolResult plan(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"plan", at("profile.json"), at("cluster.toml")});
    return run_tool(std::move(more));
  }

  ModelProfile model;
  Cluster cluster;

 private:
  std::filesystem::path path_;
};

}  // namespace autopar::test
