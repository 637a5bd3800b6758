#include <autopar/io/supervision.hpp>

#include <limits>

#include <unistd.h>

#include <autopar/core/error.hpp>

#include "json_reader.hpp"

namespace autopar {

std::string to_text(const Supervision& supervision) {
  return nlohmann::ordered_json{{"folder", supervision.folder.string()},
                                {"job", supervision.job},
                                {"start", supervision.start},
                                {"may_change_batch", supervision.may_change_batch}}
      .dump();
}

std::filesystem::path snapshot_folder(const std::string& job) {
  return std::filesystem::path("/dev/shm") / ("autopar-" + std::to_string(::geteuid()) + "-" + job);
}

std::optional<Supervision> supervision(const std::vector<std::string>& environment) {
  const std::string prefix = std::string(kSupervisionVariable) + "=";
  for (const auto& entry : environment) {
    if (!entry.starts_with(prefix)) continue;
    const std::string name = "environment variable " + std::string(kSupervisionVariable);
    const auto json = detail::parse_json(entry.substr(prefix.size()), name);
    detail::JsonReader reader(json, name, "");
    Supervision read;
    read.folder = reader.text("folder");
    read.job = reader.text("job");
    read.start = reader.whole("start", 1, std::numeric_limits<std::int64_t>::max());
    read.may_change_batch = reader.flag("may_change_batch");
    reader.finish();
    if (!read.folder.is_absolute()) throw ConfigError("'folder' is no absolute path", name);
    const bool is_name =
        !read.job.empty() && read.job.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string::npos;
    if (!is_name) throw ConfigError("'job' has other characters than small letters, digits and '-'", name);
    return read;
  }
  return std::nullopt;
}

}  // namespace autopar
