#include "lock_holder.hpp"

#include <cerrno>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>

#include <unistd.h>

#include <autopar/core/error.hpp>
#include <autopar/io/host_name.hpp>

#include "json_reader.hpp"

namespace autopar::detail {

namespace {

constexpr const char* kLockMark = "autopar folder lock";

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Containers of one host have process ids of their own, and so has a host after each boot.
std::string system_of_this_process() {
  std::istringstream boot(content_of("/proc/sys/kernel/random/boot_id"));
  std::string id;
  boot >> id;
  std::error_code error;
  const auto ids = std::filesystem::read_symlink("/proc/self/ns/pid", error).string();
  return id.empty() || error ? "" : id + ' ' + ids;
}

/// The 22nd value of its line, of which the second is a name in brackets.
std::optional<std::int64_t> start_of(std::int64_t process) {
  constexpr int kAfterName = 19;  // values between the name and the start
  const auto line = content_of("/proc/" + std::to_string(process) + "/stat");
  const auto name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream values(line.substr(name_end + 1));
  std::string skipped;
  for (int i = 0; i < kAfterName; ++i) values >> skipped;
  std::int64_t started = 0;
  return values >> started ? std::optional(started) : std::nullopt;
}

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  char text[32] = {};
  if (::gmtime_r(&now, &utc)) std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

}  // namespace

LockHolder this_process(bool is_lease) {
  const std::int64_t process = ::getpid();
  return {is_lease, host_name(), system_of_this_process(), process, start_of(process).value_or(0), now_text()};
}

bool is_gone(const LockHolder& holder) {
  if (holder.system.empty() || holder.host != host_name() || holder.system != system_of_this_process()) return false;
  if (::kill(static_cast<::pid_t>(holder.process), 0) != 0 && errno == ESRCH) return true;
  const auto started = start_of(holder.process);
  return started && *started != holder.started;
}

std::string described(const LockHolder& holder) {
  return "process " + std::to_string(holder.process) + " on host " + holder.host + ", since " + holder.since;
}

std::string to_json(const LockHolder& holder) {
  const OrderedJson json{{"format", kLockMark},     {"lease", holder.is_lease},  {"host", holder.host},
                         {"system", holder.system}, {"process", holder.process}, {"started", holder.started},
                         {"since", holder.since}};
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + '\n';
}

std::optional<LockHolder> parse_lock_holder(std::string_view json) {
  try {
    const auto root = parse_json(json, "");
    JsonReader reader(root, "", "");
    if (reader.text("format") != kLockMark) return std::nullopt;
    LockHolder holder;
    holder.is_lease = reader.flag("lease");
    holder.host = reader.text("host");
    holder.system = reader.text("system");
    holder.process = reader.whole("process", 1, kMaxId);
    holder.started = reader.whole("started", 0, std::numeric_limits<std::int64_t>::max());
    holder.since = reader.text("since");
    reader.finish();
    return holder;
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

}  // namespace autopar::detail
