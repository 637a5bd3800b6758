#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace autopar {

enum class LogLevel : std::uint8_t { kTrace, kDebug, kInfo, kWarn, kError, kOff };

/// The part of the library that writes a line. Each has its own level.
enum class LogModule : std::uint8_t {
  kWorld,
  kTransport,
  kCapture,
  kPasses,
  kProfiler,
  kPlanner,
  kSchedule,
  kExecutor,
  kSession,
  kOptimizer,
  kCheckpoint,
};
inline constexpr int kLogModules = 11;

/// "trace" | "debug" | "info" | "warn" | "error" | "off"; empty for any other text.
[[nodiscard]] std::optional<LogLevel> log_level_named(std::string_view name);
/// "World", "Transport", …; empty for any other text.
[[nodiscard]] std::optional<LogModule> log_module_named(std::string_view name);
[[nodiscard]] std::string_view name_of(LogModule module);
/// Of all modules, in their order.
[[nodiscard]] std::vector<std::string> log_module_names();

/// A logger of RaNNC's manual, and the module that says here what that one says there.
struct RanncLogger {
  std::string_view rannc;
  LogModule module;
};
[[nodiscard]] const std::vector<RanncLogger>& rannc_loggers();

}  // namespace autopar
