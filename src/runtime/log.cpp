#include <autopar/runtime/log.hpp>

#include <array>
#include <mutex>
#include <new>
#include <optional>

#include <spdlog/sinks/dist_sink.h>
#include <spdlog/spdlog.h>

#include <autopar/core/printable.hpp>
#include <autopar/io/log_config.hpp>

#include "log_sinks.hpp"

namespace autopar {
namespace detail {

/// The loggers stay; what changes is the list of sinks behind each, which has a lock.
class LogSink {
 public:
  LogSink(Rank rank, int size) : origin_{rank, size, host_in_file_name()} {
    for (std::size_t i = 0; i < loggers_.size(); ++i) {
      lists_[i] = std::make_shared<spdlog::sinks::dist_sink_mt>();
      loggers_[i] = std::make_unique<spdlog::logger>(std::string(name_of(static_cast<LogModule>(i))), lists_[i]);
      loggers_[i]->flush_on(spdlog::level::trace);
    }
    set_sinks({});
    set_levels({});
  }

  [[nodiscard]] spdlog::logger& of(LogModule module) const { return *loggers_[static_cast<std::size_t>(module)]; }
  [[nodiscard]] LineReceiver& receiver() const { return *receiver_; }

  bool configure(const LogConfig& config) {
    const std::lock_guard lock(mutex_);
    const bool is_other = config_ != config;
    if (is_other) {
      set_sinks(config);
      config_ = config;
    }
    set_levels(config);
    return is_other;
  }

 private:
  void set_sinks(const LogConfig& config) {
    auto sinks = open_sinks(config, origin_, receiver_);
    for (std::size_t i = 0; i < lists_.size(); ++i) lists_[i]->set_sinks(std::move(sinks[i]));
  }
  void set_levels(const LogConfig& config) {
    for (std::size_t i = 0; i < loggers_.size(); ++i) loggers_[i]->set_level(spdlog_level(config.modules[i].level));
  }

  const LogOrigin origin_;
  const std::shared_ptr<LineReceiver> receiver_ = std::make_shared<LineReceiver>();
  std::array<std::shared_ptr<spdlog::sinks::dist_sink_mt>, kLogModules> lists_;
  std::array<std::unique_ptr<spdlog::logger>, kLogModules> loggers_;
  std::mutex mutex_;                 ///< of configure
  std::optional<LogConfig> config_;  ///< none: nobody has configured
};

}  // namespace detail

bool Logger::enabled(LogLevel level) const noexcept {
  return sink_ && level != LogLevel::kOff && sink_->of(module_).should_log(detail::spdlog_level(level));
}

// spdlog reports its own errors to standard error and does not throw them.
void Logger::write(LogLevel level, std::string_view line) const noexcept {
  if (!enabled(level)) return;
  try {
    sink_->of(module_).log(detail::spdlog_level(level), printable_line(line));
  } catch (const std::bad_alloc&) {  // then there is no line
  }
}

void Logger::write_table(LogLevel level, std::string_view text) const noexcept {
  if (!enabled(level)) return;
  try {
    sink_->of(module_).log(detail::spdlog_level(level), printable(text));
  } catch (const std::bad_alloc&) {
  }
}

Log::Log(Rank rank, int size) : sink_(std::make_shared<detail::LogSink>(rank, size)) {}

void Log::set_level(LogLevel level) {
  for (int module = 0; module < kLogModules; ++module) set_level(static_cast<LogModule>(module), level);
}

void Log::set_level(LogModule module, LogLevel level) { sink_->of(module).set_level(detail::spdlog_level(level)); }

void Log::set_writer(Writer writer) { sink_->receiver().set(std::move(writer)); }

bool Log::configure(const LogConfig& config) { return sink_->configure(config); }

}  // namespace autopar
