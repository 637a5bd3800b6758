#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <autopar/core/ids.hpp>
#include <autopar/io/log_module.hpp>

namespace autopar {

struct LogConfig;

namespace detail {
class LogSink;
}

/// Writes lines for one module of one rank: `[12:03:04.123 warn  rank 2/4 World] …`. A handle: cheap to copy,
/// thread-safe, never throws. A default-constructed logger is silent.
class Logger {
 public:
  Logger() = default;
  Logger(std::shared_ptr<detail::LogSink> sink, LogModule module) : sink_(std::move(sink)), module_(module) {}

  [[nodiscard]] bool enabled(LogLevel level) const noexcept;
  /// Writes one line. Control characters, including line breaks, are escaped.
  void write(LogLevel level, std::string_view line) const noexcept;
  /// Writes text of several lines, in which names are already escaped (`printable_line`).
  void write_table(LogLevel level, std::string_view text) const noexcept;

  void debug(std::string_view line) const noexcept { write(LogLevel::kDebug, line); }
  void info(std::string_view line) const noexcept { write(LogLevel::kInfo, line); }
  void warn(std::string_view line) const noexcept { write(LogLevel::kWarn, line); }
  void error(std::string_view line) const noexcept { write(LogLevel::kError, line); }

 private:
  std::shared_ptr<detail::LogSink> sink_;
  LogModule module_ = LogModule::kWorld;
};

/// The log of one rank: its loggers, their levels and the destination of lines. Default: level kWarn, to standard
/// error.
class Log {
 public:
  /// Receives complete lines without the line break. Called from any thread, one call at a time.
  using Writer = std::function<void(const std::string& line)>;

  Log(Rank rank, int size);

  [[nodiscard]] Logger logger(LogModule module) const { return Logger(sink_, module); }
  void set_level(LogLevel level);
  void set_level(LogModule module, LogLevel level);
  /// Sends lines to `writer` instead of standard error, and of standard output where logging.toml names it.
  void set_writer(Writer writer);
  /// Sets sinks, patterns and levels of all modules, also of loggers that are in use. This rank opens the sinks that
  /// have its rank; if `config` equals the one before, they stay open.
  /// @return false if `config` equals that of the call before
  /// @throws ConfigError if a file cannot be written, or ranks or sinks would share one; then nothing changes
  bool configure(const LogConfig& config);

 private:
  std::shared_ptr<detail::LogSink> sink_;
};

}  // namespace autopar
