#include "records.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <autopar/core/error.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/file_descriptor.hpp>

namespace autopar::tool {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kLogPrefix = "start-", kLogSuffix = ".log";

std::string log_name(int number) {
  const auto digits = std::to_string(number);
  constexpr std::size_t kDigits = 4;
  return std::string(kLogPrefix) + std::string(kDigits - std::min(kDigits, digits.size()), '0') + digits +
         std::string(kLogSuffix);
}

/// 0: no log.
int number_of(const std::string& name) {
  if (!name.starts_with(kLogPrefix) || !name.ends_with(kLogSuffix)) return 0;
  const auto digits = name.substr(kLogPrefix.size(), name.size() - kLogPrefix.size() - kLogSuffix.size());
  int number = 0;
  constexpr int kMost = 1 << 30;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return error == std::errc() && end == digits.data() + digits.size() && number < kMost ? std::max(number, 0) : 0;
}

void append(const fs::path& path, const std::string& text) {
  const FileDescriptor file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666));
  if (!file || ::write(file.number(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    throw ConfigError(std::strerror(errno), path.string());
}

Json json_of(const Fault& fault) {
  return {{"rank", fault.rank ? Json(*fault.rank) : Json()}, {"action", fault.action}, {"message", fault.message}};
}

Json json_of(const std::optional<StepReached>& reached) { return reached ? Json(reached->step) : Json(); }

}  // namespace

Records::Records(fs::path folder) : folder_(std::move(folder)) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_, error))
    earlier_ = std::max(earlier_, number_of(entry.path().filename().string()));
}

void Records::write(int start, const StartRecord& record, const StartOutcome& outcome) const {
  const int number = earlier_ + start;
  Json hosts = Json::array();
  for (const auto& host : record.hosts) hosts.push_back({{"host", host.host}, {"ranks", host.slots}});
  const bool is_killed = record.status > kShellSignal && outcome.report.signal() == record.status - kShellSignal;
  const auto& fault = outcome.report.fault();
  const Json line{{"number", number},
                  {"job", record.job},
                  {"command", record.command},
                  {"ranks", record.ranks},
                  {"hosts", std::move(hosts)},
                  {"begin", record.begin},
                  {"end", record.end},
                  {"first_step", json_of(outcome.first)},
                  {"last_step", json_of(outcome.last)},
                  {"status", record.status},
                  {"signal", is_killed ? Json(record.status - kShellSignal) : Json()},
                  {"fault", fault ? json_of(*fault) : Json()},
                  {"next", record.next}};
  append(folder_ / "starts.jsonl", line.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n');
  std::string text;
  for (const auto& last : outcome.last_lines.lines()) text += last + '\n';
  write_text_file(folder_ / log_name(number), text);
}

}  // namespace autopar::tool
