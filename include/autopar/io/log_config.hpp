#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <autopar/core/units.hpp>
#include <autopar/io/log_module.hpp>

namespace autopar {

/// Standard output or standard error. Lines go to the program instead where it takes them (`Log::set_writer`).
struct ConsoleLog {
  bool is_error = false;
  bool in_colour = false;  ///< what the pattern has between %^ and %$
  bool operator==(const ConsoleLog&) const = default;
};

/// What all files of a log have. The name may contain "{rank}", "{size}" and "{host}".
struct LogFileName {
  std::string name;
  bool creates_folder = false;  ///< else its folder must exist
  bool operator==(const LogFileName&) const = default;
};

struct FileLog {
  LogFileName file;
  bool truncates = false;  ///< else it appends
  bool operator==(const FileLog&) const = default;
};

/// NAME.log, NAME.1.log, …: older lines have larger numbers.
struct RotatingFileLog {
  LogFileName file;
  Bytes most{0};      ///< of a file
  int old_files = 0;  ///< kept beside it
  bool operator==(const RotatingFileLog&) const = default;
};

/// NAME_2026-11-29.log: a file a day, from this local time on.
struct DailyFileLog {
  LogFileName file;
  int hour = 0, minute = 0;
  bool operator==(const DailyFileLog&) const = default;
};

struct SystemLog {
  std::string identity = "autopar";
  int options = 0, facility = 8;  ///< as in openlog(3); 8: LOG_USER
  bool operator==(const SystemLog&) const = default;
};

struct NullLog {
  bool operator==(const NullLog&) const = default;
};

/// A destination of lines.
struct LogSinkConfig {
  std::string name;
  std::variant<ConsoleLog, FileLog, RotatingFileLog, DailyFileLog, SystemLog, NullLog> to;
  LogLevel level = LogLevel::kTrace;  ///< lines below are left out, whatever the logger's level
  /// The ranks that write to it; unset: all. Ranks that a World does not have are ignored.
  std::optional<std::vector<int>> ranks;
  int line = 0;  ///< of the file, for messages
  bool operator==(const LogSinkConfig&) const = default;

  /// Null if it is no file.
  [[nodiscard]] const LogFileName* file() const;
};

/// How one module logs.
struct ModuleLogConfig {
  LogLevel level = LogLevel::kWarn;
  /// Indices of sinks; unset: standard error.
  std::optional<std::vector<std::size_t>> sinks;
  /// In spdlog's notation, with "{rank}", "{size}" and "{host}".
  std::string pattern = "[%H:%M:%S.%e %-5l rank {rank}/{size} %n] %v";
  bool operator==(const ModuleLogConfig&) const = default;
};

/// Where the lines of each module go. By default warnings of all go to standard error.
struct LogConfig {
  std::string file = "logging.toml";  ///< for messages
  std::vector<LogSinkConfig> sinks;
  std::array<ModuleLogConfig, kLogModules> modules;
  std::vector<std::string> notes;  ///< for the user, e.g. about RaNNC's names
  bool operator==(const LogConfig&) const = default;
};

/// Reads spdlog_setup's format: global_pattern, [[sink]], [[pattern]], [[logger]] (docs/options.md). Opens no sink.
/// @throws ConfigError with file, line and key for what is unknown, of a wrong type, out of range, missing or there
/// twice
[[nodiscard]] LogConfig parse_log_config(std::string_view text, const std::string& file);

/// Whether a file has one of the keys of such a file, or none at all. Other programs have a logging.toml, too.
/// @throws ConfigError if it is not TOML
[[nodiscard]] bool is_log_config(std::string_view text, const std::string& file);

}  // namespace autopar
