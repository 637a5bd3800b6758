#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <spdlog/common.h>
#include <spdlog/sinks/sink.h>

#include <autopar/core/ids.hpp>
#include <autopar/io/log_config.hpp>
#include <autopar/runtime/log.hpp>

namespace autopar::detail {

/// Who writes: what "{rank}", "{size}" and "{host}" stand for.
struct LogOrigin {
  Rank rank;
  int size = 1;
  std::string host;
};

/// Where a program takes the lines of consoles itself. Thread-safe; one call of the program's function at a time.
class LineReceiver {
 public:
  void set(Log::Writer writer);
  /// May be out of date when it returns.
  [[nodiscard]] bool is_set() const { return is_set_; }
  /// @return false where nobody receives
  bool receive(std::string_view line);

 private:
  std::mutex mutex_;
  std::atomic<bool> is_set_{false};
  Log::Writer writer_;
};

using SpdlogSink = std::shared_ptr<spdlog::sinks::sink>;

/// The sinks of each module, for one rank.
using ModuleSinks = std::array<std::vector<SpdlogSink>, kLogModules>;

/// Opens the sinks of a rank. Sinks that several modules share are one object.
/// @throws ConfigError with file, line and key of logging.toml
[[nodiscard]] ModuleSinks open_sinks(const LogConfig& config, const LogOrigin& origin,
                                     const std::shared_ptr<LineReceiver>& receiver);

[[nodiscard]] spdlog::level::level_enum spdlog_level(LogLevel level);

/// What stands for `{host}` in names of files: this host's name without what separates folders.
[[nodiscard]] std::string host_in_file_name();

}  // namespace autopar::detail
