#include <autopar/runtime/log.hpp>

#include <array>
#include <atomic>
#include <mutex>
#include <new>

#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <autopar/core/printable.hpp>

namespace autopar {
namespace {

constexpr std::array<std::string_view, 6> kLevelNames{"trace", "debug", "info", "warn", "error", "off"};
constexpr std::array<std::string_view, kLogModules> kModuleNames{"World",    "Transport", "Capture",   "Passes",
                                                                 "Profiler", "Planner",   "Schedule",  "Executor",
                                                                 "Session",  "Optimizer", "Checkpoint"};

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace:
      return spdlog::level::trace;
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      break;
  }
  return spdlog::level::off;
}

/// Hands finished lines to the user's function, or to standard error while there is none.
class WriterSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  void set_writer(Log::Writer writer) {
    const std::lock_guard lock(mutex_);
    writer_ = std::move(writer);
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (!writer_) {
      standard_error_.log(message);
      return;
    }
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    std::string_view text(line.data(), line.size());
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
    writer_(std::string(text));
  }
  void flush_() override { standard_error_.flush(); }
  void set_pattern_(const std::string& pattern) override {
    standard_error_.set_pattern(pattern);
    base_sink::set_pattern_(pattern);
  }
  void set_formatter_(std::unique_ptr<spdlog::formatter> formatter) override {
    standard_error_.set_formatter(formatter->clone());
    base_sink::set_formatter_(std::move(formatter));
  }

  Log::Writer writer_;
  spdlog::sinks::stderr_sink_mt standard_error_;
};

}  // namespace

namespace detail {

class LogSink {
 public:
  LogSink(Rank rank, int size) : writer_(std::make_shared<WriterSink>()) {
    writer_->set_pattern("[%H:%M:%S.%e %-5l rank " + std::to_string(rank.value()) + "/" + std::to_string(size) +
                         " %n] %v");
    for (std::size_t i = 0; i < kModuleNames.size(); ++i) {
      loggers_[i] = std::make_unique<spdlog::logger>(std::string(kModuleNames[i]), writer_);
      loggers_[i]->set_level(spdlog::level::warn);
      loggers_[i]->flush_on(spdlog::level::trace);
    }
  }

  [[nodiscard]] spdlog::logger& of(LogModule module) const { return *loggers_[static_cast<std::size_t>(module)]; }
  [[nodiscard]] WriterSink& writer() const { return *writer_; }

 private:
  std::shared_ptr<WriterSink> writer_;
  std::array<std::unique_ptr<spdlog::logger>, kLogModules> loggers_;
};

}  // namespace detail

std::optional<LogLevel> log_level_named(std::string_view name) {
  for (std::size_t i = 0; i < kLevelNames.size(); ++i) {
    if (kLevelNames[i] == name) return static_cast<LogLevel>(i);
  }
  return std::nullopt;
}

std::string_view name_of(LogModule module) { return kModuleNames[static_cast<std::size_t>(module)]; }

bool Logger::enabled(LogLevel level) const noexcept {
  return sink_ && level != LogLevel::kOff && sink_->of(module_).should_log(to_spdlog(level));
}

// spdlog reports its own errors to standard error and does not throw them.
void Logger::write(LogLevel level, std::string_view line) const noexcept {
  if (!enabled(level)) return;
  try {
    sink_->of(module_).log(to_spdlog(level), printable_line(line));
  } catch (const std::bad_alloc&) {  // then there is no line
  }
}

void Logger::write_table(LogLevel level, std::string_view text) const noexcept {
  if (!enabled(level)) return;
  try {
    sink_->of(module_).log(to_spdlog(level), printable(text));
  } catch (const std::bad_alloc&) {
  }
}

Log::Log(Rank rank, int size) : sink_(std::make_shared<detail::LogSink>(rank, size)) {}

void Log::set_level(LogLevel level) {
  for (int module = 0; module < kLogModules; ++module) set_level(static_cast<LogModule>(module), level);
}

void Log::set_level(LogModule module, LogLevel level) { sink_->of(module).set_level(to_spdlog(level)); }

void Log::set_writer(Writer writer) { sink_->writer().set_writer(std::move(writer)); }

}  // namespace autopar
